package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/nwt-go/nwt"
)

// An end says why this program ends, to the one that has started it.
type end struct {
	Error string `json:"error"`
	Code  string `json:"code,omitempty"` // see nwt.ArgumentError; or "missing", "forbidden" or "no-folder", of a file
	Path  string `json:"path,omitempty"` // of that file
}

func reportEnd(err error) {
	e := end{Error: err.Error()}
	argument, path := (*nwt.ArgumentError)(nil), (*fs.PathError)(nil)
	if errors.As(err, &path) {
		e.Path = path.Path
	}
	switch {
	case errors.Is(err, fs.ErrNotExist):
		e.Code = "missing"
	case errors.Is(err, fs.ErrPermission):
		e.Code = "forbidden"
	case errors.Is(err, syscall.ENOTDIR):
		e.Code = "no-folder"
	case errors.As(err, &argument):
		e.Code = argument.Code
	}
	_ = json.NewEncoder(os.Stderr).Encode(e)
}
