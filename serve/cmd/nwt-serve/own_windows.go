package main

import (
	"context"
	"errors"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/serve"
)

type program struct{}

var errWindows = errors.New("samples of the program's own, and transform, need forks and sockets that Windows lacks: use WSL")

func (*program) server(context.Context, *settings, ...serve.ServerOption) (*serve.Server, *dataset, error) {
	return nil, nil, errWindows
}

func (*program) changed(context.Context, nwt.Dataset) (nwt.Dataset, string, error) {
	return nil, "", errWindows
}
