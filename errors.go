package nwt

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nwt-go/nwt/internal/cuda"
	"github.com/nwt-go/nwt/internal/usercall"
)

var (
	ErrClosed   = errors.New("nwt: the loader is closed: make a new one")                                      // returned after Close
	ErrBusy     = errors.New("nwt: an epoch of this loader is running: end its loop, or make a second loader") // returned for a second epoch while one is running
	ErrRetained = errors.New("nwt: too many batches are retained")                                             // ends an epoch when no slot is left to load a batch into
	ErrNoDevice = cuda.ErrNoDevice                                                                             // there is no usable GPU; the error that wraps this one says why
)

// goneBack says of a batch that was used too late what had happened, and what to do.
const goneBack = "the batch had gone back to the loader: call Retain to keep it past its iteration, or copy what you keep"

// nilBatch says why a loop body got no batch, and what to do.
const nilBatch = "nwt: the batch is nil, because the epoch ended with an error: check the error first"

// A LoadError says which sample couldn't be loaded, and why. For a stream, Err names the record.
type LoadError struct {
	Index    int // in the dataset; −1 if the sampler, WithWorkerInit or WithBatchTransform failed
	Position int // in the epoch, over all ranks: see [Sample.Position]; −1 if WithWorkerInit, WithBatchTransform or BatchSampler.Start failed
	Epoch    int
	Worker   int
	Err      error  // for a panic: its value, file and line
	Stack    []byte // of the panic; nil if there was none

	origin string // names the sample in the datasets that its dataset was made of
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

// A ShardError says at which record the reading of a shard failed. The rest of the shard is lost and
// counts as one bad sample; in a [CountedStream] each record counts.
type ShardError struct {
	Shard  int
	Record int // in the shard, from 0
	Err    error
}

func (e *ShardError) Error() string {
	return fmt.Sprintf("shard %d from record %d on: %v", e.Shard, e.Record, e.Err)
}

func (e *ShardError) Unwrap() error { return e.Err }

// An ArgumentError says which argument can't be used, and why.
type ArgumentError struct {
	Name   string // e.g. "WithBatchSize"; "Split: shares[0]" if a part of the value can't be used; "wds.New" in another package
	Value  any    // the value given, or the part of it that can't be used; nil if Reason contains it
	Reason string // what is wrong, and the bounds
}

func (e *ArgumentError) Error() string {
	const most = 200 // bytes of a value to print; it may be a slice of a million
	value := fmt.Sprint(e.Value)
	if len(value) > most {
		value = strings.ToValidUTF8(value[:most], "") + "…"
	}
	if value == "" {
		value = `""`
	}
	prefix, name, ok := strings.Cut(e.Name, ".")
	if !ok || strings.Trim(prefix, "abcdefghijklmnopqrstuvwxyz") != "" {
		prefix, name = "nwt", e.Name
	}
	switch {
	case e.Value == nil:
		return fmt.Sprintf("%s: %s: %s", prefix, name, e.Reason)
	case strings.HasSuffix(name, "]"):
		return fmt.Sprintf("%s: %s = %s: %s", prefix, name, value, e.Reason)
	}
	return fmt.Sprintf("%s: %s: %s: %s", prefix, name, value, e.Reason)
}

func optionError(option string, value any, format string, args ...any) error {
	return &ArgumentError{option, value, fmt.Sprintf(format, args...)}
}

// part returns the name of the i-th of several values, for ArgumentError.Name.
func part(of string, i int) string { return fmt.Sprintf("%s[%d]", of, i) }

// within adds to an error the place where it was found: "Map", "Concat: dataset 2".
func within(what string, err error) error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, err := range all.Unwrap() {
			errs = append(errs, within(what, err))
		}
		return errors.Join(errs...)
	}
	if e, ok := err.(*ArgumentError); ok {
		return &ArgumentError{what + ": " + e.Name, e.Value, e.Reason}
	}
	return fmt.Errorf("nwt: %s: %w", what, usercall.Cause(err))
}
