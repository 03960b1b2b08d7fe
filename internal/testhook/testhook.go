// Package testhook has what only tests set of a loader or a tuner. Package nwt registers how; its
// results are each an nwt.Option, which this package can't name.
package testhook

import "github.com/nwt-go/nwt/internal/host"

var (
	Machine   func(host.Readings) any // loaders and tuners read this machine
	ReadAhead func(bytes int64) any   // bounds the memory of the records that a stream reads ahead
)
