package serve

import (
	"context"
	"errors"
	"sync"
	"unsafe"

	"google.golang.org/grpc/status"

	"github.com/apache/arrow-go/v18/arrow/flight"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/retry"
)

// A pool is the goroutines that load. Several load one batch side by side.
type pool struct {
	workers int
	jobs    chan job
	group   sync.WaitGroup
}

// A job is some samples of a batch.
type job struct {
	ctx      context.Context
	batch    *nwt.PlacedBatch
	from, to int
	done     func(error)
}

func newPool(l *nwt.Loader) *pool {
	p := &pool{workers: max(1, l.Workers()), jobs: make(chan job)}
	for i := range p.workers {
		p.group.Go(func() {
			hand := l.NewHand(i)
			defer hand.Close()
			for j := range p.jobs {
				j.done(hand.Load(j.ctx, j.batch, j.from, j.to))
			}
		})
	}
	return p
}

// close waits for the workers. No load is under way any more.
func (p *pool) close() {
	close(p.jobs)
	p.group.Wait()
}

// load loads the n samples of a batch, and returns once no worker touches it.
func (p *pool) load(ctx context.Context, b *nwt.PlacedBatch, n int) error {
	var (
		under sync.WaitGroup
		mu    sync.Mutex
		err   error
	)
	size := max(1, n/(4*p.workers))
	for from := 0; from < n; from += size {
		under.Add(1)
		p.jobs <- job{ctx, b, from, min(n, from+size), func(failed error) {
			defer under.Done()
			if failed != nil {
				mu.Lock()
				defer mu.Unlock()
				err = failed
			}
		}}
	}
	under.Wait()
	return err
}

// fail tells of a sample that could not be loaded.
func (a *answer) fail(place int, err error) {
	if a.Bad == nil {
		a.Bad, a.Passing = make(map[int]string), make(map[int]bool)
	}
	var load *nwt.LoadError
	if errors.As(err, &load) {
		err = load.Err
	}
	a.Bad[place] = err.Error()
	a.Passing[place], _ = retry.MayPass(err)
}

// bytesOf is lengths as memory.
func bytesOf(lens []int32) []byte {
	if len(lens) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&lens[0])), 4*len(lens))
}

const sizesAtOnce = 1 << 16

// sendSizes sends the sizes of all samples, some thousand a message.
func sendSizes(ds nwt.SizedDataset, fields []nwt.Field, stream flight.FlightService_DoActionServer) error {
	ragged := 0
	for _, f := range fields {
		ragged += raggedDims(f)
	}
	sizes, lens := make([]int, ragged), make([]int32, 0, sizesAtOnce*ragged)
	for index, n := 0, ds.Len(); index < n; index++ {
		clear(sizes)
		ds.Sizes(index, sizes)
		for _, size := range sizes {
			lens = append(lens, int32(size))
		}
		if len(lens) == cap(lens) || index == n-1 {
			if err := stream.Send(&flight.Result{Body: bytesOf(lens)}); err != nil {
				return err
			}
			lens = lens[:0]
		}
		if err := stream.Context().Err(); err != nil {
			return status.FromContextError(err).Err()
		}
	}
	return nil
}
