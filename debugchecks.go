package nwt

import (
	"fmt"
	"iter"
	"runtime"
	"runtime/debug"
	"sync/atomic"

	"github.com/nwt-go/nwt/internal/osmemory"
)

// WithChecks finds mistakes of the program, at the cost of new memory for each batch; so does
// NWT_DEBUG=1 in the environment. What a batch held is unreadable once it has gone back: a loop
// body that touches it panics and names the batch; elsewhere the program ends with "unexpected
// fault address", after log lines of level Debug that tell which batch was there. It also logs
// the error that ends an epoch.
func WithChecks() Option {
	return func(o *options) error {
		o.checks = true
		return nil
	}
}

// withChecks returns an epoch in whose loop body mistakes are found.
func (l *engine) withChecks(epoch iter.Seq2[*Batch, error]) iter.Seq2[*Batch, error] {
	return func(yield func(*Batch, error) bool) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		var failure error
		defer func() {
			if p := recover(); p != nil {
				panic(explainPanic(p, failure))
			}
		}()
		epoch(func(b *Batch, err error) bool {
			if failure = err; err != nil {
				l.opts.log.Error("nwt: the epoch ended with an error", "error", err)
			}
			return yield(b, err)
		})
	}
}

// explainPanic tells what a panic of a loop body comes from, if it is a mistake that is known.
// failure is the error that was yielded last.
func explainPanic(p any, failure error) any {
	err, ok := p.(runtime.Error)
	if fault, ok := p.(interface{ Addr() uintptr }); ok {
		if was := osmemory.SealedAs(fault.Addr()); was != "" {
			return fmt.Errorf("nwt: memory of %s was used after %s: %w", was, goneBack, err)
		}
	}
	if ok && failure != nil {
		return fmt.Errorf("nwt: the loop body failed on the nil batch that comes with the epoch's error; check the error first: %w (%w)", failure, err)
	}
	return p
}

var toldOfChecks atomic.Bool // no Once: whoever came second would wait for the log's handler

// tellOfChecks logs, once in the process, what an end of the program may mean.
func (o *options) tellOfChecks() {
	if !toldOfChecks.Swap(true) {
		o.log.Info("nwt: checks are on: if the program ends with \"unexpected fault address\", it may have used what a batch held after " + goneBack)
	}
}
