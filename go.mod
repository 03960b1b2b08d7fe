module github.com/nwt-go/nwt

go 1.26
