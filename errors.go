package nwt

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/usercall"
)

var (
	ErrClosed   = errors.New("nwt: the loader is closed")               // the loader's error after Close
	ErrBusy     = errors.New("nwt: an epoch of this loader is running") // for a second epoch, while one is running
	ErrRetained = errors.New("nwt: too many batches are retained")      // ends an epoch that has no batch left to load into
	ErrNoDevice = cuda.ErrNoDevice                                      // there is no GPU to use; the error that wraps it says why
)

// A LoadError says which sample couldn't be loaded, and why; of a stream, Err tells the record.
type LoadError struct {
	Index    int // in the dataset; −1 if the sampler, WithWorkerInit or WithBatchTransform failed
	Position int // in the epoch, over all ranks: see [Sample.Position]; −1 if WithWorkerInit, WithBatchTransform or BatchSampler.Start failed
	Epoch    int
	Worker   int
	Err      error  // of a panic, its value, file and line
	Stack    []byte // of the panic; nil if there was none

	origin string // what the sample is in the datasets that its dataset was made of
}

func (e *LoadError) Error() string {
	switch {
	case e.Position < 0:
		return fmt.Sprintf("nwt: worker %d in epoch %d: %v", e.Worker, e.Epoch, usercall.Cause(e.Err))
	case e.Index < 0:
		return fmt.Sprintf("nwt: the sampler in epoch %d (position %d, worker %d): %v", e.Epoch, e.Position, e.Worker, usercall.Cause(e.Err))
	}
	where := fmt.Sprintf("position %d, worker %d", e.Position, e.Worker)
	if e.origin != "" {
		where = e.origin + ", " + where
	}
	return fmt.Sprintf("nwt: sample %d of epoch %d (%s): %v", e.Index, e.Epoch, where, usercall.Cause(e.Err))
}

func (e *LoadError) Unwrap() error { return e.Err }

// A ShardError says from which record on a shard can't be read. The rest of it is lost and
// counts as one bad sample; of a [CountedStream] each record counts.
type ShardError struct {
	Shard  int
	Record int // in the shard, 0-based
	Err    error
}

func (e *ShardError) Error() string {
	return fmt.Sprintf("shard %d from record %d on: %v", e.Shard, e.Record, e.Err)
}

func (e *ShardError) Unwrap() error { return e.Err }

// An OptionError says which argument can't be used, and why.
type OptionError struct {
	Option string // e.g. "WithBatchSize"; "Split: shares[0]" if a part of what was given can't be used
	Value  any    // what was given, or the part; nil if the reason says it
	Reason string // what is wrong, with the bound
}

func (e *OptionError) Error() string {
	const most = 200 // bytes of a value, which may be a slice of a million
	value := fmt.Sprint(e.Value)
	if len(value) > most {
		value = strings.ToValidUTF8(value[:most], "") + "…"
	}
	if value == "" {
		value = `""`
	}
	switch {
	case e.Value == nil:
		return fmt.Sprintf("nwt: %s: %s", e.Option, e.Reason)
	case strings.HasSuffix(e.Option, "]"):
		return fmt.Sprintf("nwt: %s = %s: %s", e.Option, value, e.Reason)
	}
	return fmt.Sprintf("nwt: %s: %s: %s", e.Option, value, e.Reason)
}

func optionError(option string, value any, format string, args ...any) error {
	return &OptionError{option, value, fmt.Sprintf(format, args...)}
}

// part names the i-th of several values, as an OptionError's Option.
func part(of string, i int) string { return fmt.Sprintf("%s[%d]", of, i) }

// within adds to an error what it was found in: "Map", "Concat: dataset 2".
func within(what string, err error) error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, err := range all.Unwrap() {
			errs = append(errs, within(what, err))
		}
		return errors.Join(errs...)
	}
	if e, ok := err.(*OptionError); ok {
		return &OptionError{what + ": " + e.Option, e.Value, e.Reason}
	}
	return fmt.Errorf("nwt: %s: %w", what, usercall.Cause(err))
}
