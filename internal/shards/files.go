package shards

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/files"
)

// Files is what Sets that read side by side know of the limit of open files.
type Files struct {
	short atomic.Bool        // too many were open
	lends chan chan struct{} // where a shardReader asks others for a file; what it sends is closed once one has closed its shard
	open  []lender           // if the consumer reads: those with an open shard, the last opened last
}

type lender interface{ lend(closed chan struct{}) }

// NewFiles is for shards that can be closed, and opened again later.
func NewFiles() *Files {
	return &Files{lends: make(chan chan struct{})}
}

// openShard opens a shard. While too many files are open it waits as awaitFile does, for a minute
// at most. Other temporary errors are tried again as Retries says.
func (c *Config[R]) openShard(ctx context.Context, shard int, awaitFile func(context.Context, time.Duration) bool) (Reader[R], error) {
	began := time.Now()
	for tries, wait := 0, c.Backoff; ; tries, wait = tries+1, 2*wait {
		reader, err := c.Open(ctx, shard)
		switch {
		case err == nil && reader == nil:
			return nil, errors.New("its Open returned neither a reader nor an error")
		case err == nil:
			return reader, nil
		case files.TooMany(err):
			if time.Since(began) >= filePatience {
				return nil, fmt.Errorf("too many files were open for a minute, WithInterleave(%d): %w", c.AtOnce, err)
			}
			if !awaitFile(ctx, min(max(wait, time.Millisecond), time.Second)) {
				return nil, err
			}
		case tries >= c.Retries || !c.Temporary(err) || !Pause(ctx, wait):
			return nil, err
		}
	}
}

// Pause waits, and reports false if the context ends first.
func Pause(ctx context.Context, d time.Duration) bool {
	waiting, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-waiting.Done()
	return ctx.Err() == nil
}

// filePatience is how long to wait while too many files are open.
const filePatience = time.Minute

// awaitFile waits for a while, or until another reader that can't read on now has closed its
// shard. It reports false if there is nothing to wait for.
func (c *shardReader[R]) awaitFile(ctx context.Context, wait time.Duration) bool {
	if !c.set.Files.short.Swap(true) {
		c.set.Log.Warn("nwt: too many files are open: a shard waits until another is read to its end, or closed to be opened again later. The order stays the same. Less is opened twice with a lower WithInterleave, or a higher limit of open files", "interleave", c.set.AtOnce)
	}
	if c.probing {
		return false // no reader reads
	}
	closed := make(chan struct{})
	if n := len(c.set.Files.open); n > 0 {
		c.set.Files.open[n-1].lend(closed) // so that the others stay open
	}
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	select {
	case <-closed:
	case c.set.Files.lends <- closed:
		select {
		case <-closed:
		case <-waiting.Done():
		}
	case <-waiting.Done():
	}
	return ctx.Err() == nil
}

// lending is where another reader asks for the file of this one, which can't read on now.
func (c *shardReader[R]) lending() <-chan chan struct{} {
	if c.reader == nil {
		return nil
	}
	return c.set.Files.lends
}

// lend closes the shard. It is opened again, and what was read is passed over, when the reader
// can read on.
func (c *shardReader[R]) lend(closed chan struct{}) {
	c.shut()
	c.again = c.read
	close(closed)
}
