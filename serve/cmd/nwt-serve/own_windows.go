package main

import (
	"context"
	"errors"

	"github.com/nwt-go/nwt/serve"
)

type program struct{}

func (*program) server(context.Context, *settings, ...serve.ServerOption) (*serve.Server, *dataset, error) {
	return nil, nil, errors.New("samples of the program's own need forks and sockets that Windows lacks: use WSL")
}
