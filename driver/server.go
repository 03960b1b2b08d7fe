package driver

import "context"

// A Place says which sample to load, for which position of which epoch. A sample depends only on its
// Place and on the dataset, so another process can load the same sample.
type Place struct {
	Index    int // index of the sample in its dataset
	Position int // position in the epoch, over all ranks
	Epoch    int
	Key      uint64 // seeds Sample.Rand; derived from the loader's seed
}

// A State says how far an epoch has come. It has the same fields as nwt.State, which describes them. Each
// type converts to the other. Package driver can't import package nwt, which imports it.
type State struct {
	Epoch   int
	Samples int
	World   int
	Order   uint64
}

// A Source loads the batches of a loader for other processes. Any goroutine may call its methods.
type Source interface {
	// BatchSize returns the largest number of samples in a batch: that of WithBatchSize.
	BatchSize() int

	// Places appends one batch's places to dst. The batch is one of those that Loader.Resume would yield
	// from state s on a rank of a world: number 0 is the first of them. If s is the end of an epoch, the
	// batches are those of the next epoch. Places also returns the state after the batch, and how many
	// batches of the same epoch are then left on each rank. The errors are those of Resume; it is also an
	// error if rank, world or number is out of range.
	Places(dst []Place, rank, world int, s State, number int) (places []Place, after State, left int, err error)

	// Load loads the samples of places, which must all have the same epoch and key. It uses as many workers
	// as the loader has, and the loader's WithTimeout, WithRetry and WithBatchTransform. Bad samples are
	// left out of the batch; Load returns a *nwt.LoadError for each of them. The result err says why the
	// whole batch failed: places can't be used, ctx has ended, the source is closed, there is no memory, or
	// WithWorkerInit or WithBatchTransform has failed. If ctx ends, the context of the dataset's calls ends
	// too. Don't change places later, even after Load has returned an error.
	//
	// The batch lies in memory that alloc must return, page-aligned or at least aligned to 64 bytes. After
	// Release, the source passes this memory to function free; if a hanging call of the dataset may still
	// write to the memory, the source waits until that call has returned. If alloc is nil, the memory is
	// the source's own.
	Load(ctx context.Context, places []Place, alloc func(size int) ([]byte, error), free func(mem []byte) error) (b Batch, bad []error, err error)

	// Close ends all calls of Load, and waits until no worker is left. Batches may be released before or
	// after Close.
	Close() error
}

// A Batch is a batch that a [Source] has loaded. It is valid until Release. At most 64 batches that lie
// in the source's own memory may be in use at a time.
type Batch interface {
	Len() int                    // number of samples
	Memory() []byte              // the memory in which the fields lie
	Bytes(field int) []byte      // one field of all samples
	Shape(field int) []int       // shape of a field; the first dimension is Len
	Lens(field, dim int) []int32 // length of each sample in a ragged dimension of a field
	Release()
}
