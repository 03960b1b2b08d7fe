// Package batchserver is for writers of servers that load batches for other processes, as module serve
// does. A program that trains needs nothing of it.
//
// A server gets a [Source] from Loader.Serving of package nwt. It asks which samples a client's batch has,
// loads them, and sends what it got.
package batchserver

import "context"

// A Place is all that a sample depends on, apart from its dataset: which sample it is, and for which
// position of which epoch. Another process can therefore load it, and it is the same.
type Place struct {
	Index    int // of the sample in its dataset
	Position int // in the epoch, over all ranks
	Epoch    int
	Key      uint64 // seeds Sample.Rand; it stands for the seed
}

// A State says how far an epoch has come. It converts to and from nwt.State, which describes its fields.
type State struct {
	Epoch   int
	Samples int
	World   int
	Order   uint64
}

// A Source loads the batches of a loader for other processes. Any goroutine may call its methods.
type Source interface {
	// BatchSize returns how many samples a batch has at most: WithBatchSize.
	BatchSize() int

	// Places appends to dst the places of one of the batches that Loader.Resume would yield from a state,
	// on a rank of a world; number is the batch's number from there, from 0. A state at the end of an epoch
	// begins the next one. after is the state after the batch, and left is how many batches of its epoch
	// follow on each rank. The errors are those of Resume, and one if number is out of range.
	Places(dst []Place, rank, world int, s State, number int) (places []Place, after State, left int, err error)

	// Load loads samples of one epoch and key, with the loader's workers, WithTimeout, WithRetry and
	// WithBatchTransform. Bad samples are left out of the batch; bad has an error for each, a
	// *nwt.LoadError. err is an error of the source itself: ctx has ended, it is closed, there is no memory,
	// or WithWorkerInit has failed. If ctx ends, so does the context of the dataset's calls. Don't change
	// places later, even after Load has returned an error.
	//
	// The batch lies in memory from alloc, which is page-aligned or at least aligned to 64 bytes, and which
	// free gets back after Release; if a call of the dataset hangs there, only after that call has returned.
	// If alloc is nil, the memory is the loader's own.
	Load(ctx context.Context, places []Place, alloc func(size int) ([]byte, error), free func(mem []byte) error) (b Batch, bad []error, err error)

	// Close ends all calls of Load, and waits until no worker is left. Release the batches before or after.
	Close() error
}

// A Batch is a batch that a [Source] has loaded. It is valid until Release. At most 64 batches of a source
// that lie in its own memory may be in use.
type Batch interface {
	Len() int                    // number of samples
	Memory() []byte              // the memory in which the fields lie
	Bytes(field int) []byte      // a field of all samples
	Shape(field int) []int       // its shape, whose first dimension is Len
	Lens(field, dim int) []int32 // length of each sample in a ragged dimension
	Release()
}
