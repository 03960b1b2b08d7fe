package driver

import "context"

// A Place says which sample to load, and for which position of which epoch. A sample depends only on its
// Place and on the dataset. So another process can load the same sample.
type Place struct {
	Index    int // index of the sample in its dataset
	Position int // position in the epoch, over all ranks
	Epoch    int
	Key      uint64 // seeds Sample.Rand; derived from the loader's seed
}

// A State says how far an epoch has come. It has the same fields as nwt.State, which describes them. Each
// type converts to the other. There are two types because package driver can't import package nwt.
type State struct {
	Epoch   int
	Samples int
	World   int
	Order   uint64
}

// A Source loads the batches of a loader for other processes. Any goroutine may call its methods.
type Source interface {
	// BatchSize returns the largest number of samples in a batch, which WithBatchSize has set.
	BatchSize() int

	// Places appends a Place for each sample of one batch to dst. The batch is one of those that Loader.Resume
	// would yield from state s, on a rank of a world. Number 0 is the first of these batches. If s is the end
	// of an epoch, the batches are those of the next epoch. Places also returns the state after the batch, and how
	// many batches of the same epoch are then left on each rank. The errors are those of Resume. If rank,
	// world or number is out of range, Places returns an error too.
	Places(dst []Place, rank, world int, s State, number int) (places []Place, after State, left int, err error)

	// Load loads the samples at the given places, which must all have the same epoch and key. It uses as many
	// workers as the loader has, and the loader's WithTimeout, WithRetry and WithBatchTransform. Bad samples are
	// left out of the batch. For each of them, the result bad has a *nwt.LoadError. If the whole batch fails, err
	// says why. For example, the places can't be used, the source is closed, or WithBatchTransform has failed. If
	// ctx ends, the context of the dataset's calls ends too. Don't change the slice of places later, even after
	// Load has returned an error.
	//
	// The batch lies in memory that alloc returns. This memory must be aligned to 64 bytes, and best to a page.
	// After Release, the source calls free with the memory. If a hanging call of the dataset may still write to
	// the memory, the source first waits until that call has returned. If alloc is nil, the memory is the
	// source's own.
	Load(ctx context.Context, places []Place, alloc func(size int) ([]byte, error), free func(mem []byte) error) (b Batch, bad []error, err error)

	// Close ends all calls of Load, and waits until no worker is left. Batches may be released before Close
	// or after it.
	Close() error
}

// A Batch is a batch that a [Source] has loaded. It is valid until Release. At most 64 batches in the
// source's own memory may be in use at a time.
type Batch interface {
	Len() int                    // number of samples
	Memory() []byte              // the memory in which the fields lie
	Bytes(field int) []byte      // one field of all samples
	Shape(field int) []int       // shape of a field; the first dimension is Len
	Lens(field, dim int) []int32 // length of each sample in a ragged dimension of a field
	Release()
}
