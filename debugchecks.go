package nwt

import (
	"fmt"
	"iter"
	"runtime"
	"runtime/debug"

	"github.com/nwt-go/nwt/internal/osmemory"
)

// WithChecks finds mistakes of the program, at the cost of new memory for each batch. Setting NWT_DEBUG=1
// in the environment does the same. Once a batch has gone back to the loader, its memory is unreadable. A
// loop body that touches it panics, and the panic names the batch. Elsewhere the program ends with
// "unexpected fault address", after log lines of level Debug that say which batch had that memory. It
// also logs the error that ends an epoch.
func WithChecks() Option {
	return func(o *options) error {
		o.checks = true
		return nil
	}
}

// withChecks returns the epoch with these checks around its loop body.
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

// explainPanic replaces the panic of a loop body by an explanation if the cause is a known mistake.
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

// tellOfChecks logs, once per process, what a crash of the program may mean.
func (o *options) tellOfChecks() {
	if !o.logged.checks.Swap(true) {
		o.log.Info("nwt: checks are on: if the program ends with \"unexpected fault address\", it may have used what a batch held after " + goneBack)
	}
}
