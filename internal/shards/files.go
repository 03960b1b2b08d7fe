package shards

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nwt-go/nwt/internal/files"
)

// openFiles is what a Group knows of the limit of open files.
type openFiles struct {
	short atomic.Bool        // too many were open
	lends chan chan struct{} // where a shardReader asks others for a file; what it sends is closed once one has closed its shard
	open  []lender           // if the consumer reads: those with an open shard, the last opened last
}

type lender interface{ lend(closed chan struct{}) }

// openPatiently opens a shard. While too many files are open it waits as awaitFile does, for a
// minute at most.
func (c *shardReader[R]) openPatiently() (Reader[R], error) {
	began := time.Now()
	for wait := time.Millisecond; ; wait = min(2*wait, time.Second) {
		reader, err := c.set.Open(c.ctx, c.shards[c.at])
		switch {
		case err == nil && reader == nil:
			return nil, errors.New("its Open returned neither a reader nor an error")
		case err == nil:
			return reader, nil
		case !files.TooMany(err):
			return nil, err
		case time.Since(began) >= filePatience:
			return nil, fmt.Errorf("too many files were open for a minute, WithInterleave(%d): %w", c.set.AtOnce, err)
		case !c.awaitFile(wait):
			return nil, err
		}
	}
}

// filePatience is how long to wait while too many files are open.
const filePatience = time.Minute

// awaitFile waits for a while, or until another reader that can't read on now has closed its
// shard. It reports false if there is nothing to wait for.
func (c *shardReader[R]) awaitFile(wait time.Duration) bool {
	if !c.set.group.files.short.Swap(true) {
		c.set.group.Log.Warn("nwt: too many files are open: a shard waits until another is read to its end, or closed to be opened again later. The order stays the same. Less is opened twice with a lower WithInterleave, or a higher limit of open files", "interleave", c.set.AtOnce)
	}
	if c.probing {
		return false // no reader reads
	}
	closed := make(chan struct{})
	if n := len(c.set.group.files.open); n > 0 {
		c.set.group.files.open[n-1].lend(closed) // so that the others stay open
	}
	waiting, cancel := context.WithTimeout(c.ctx, wait)
	defer cancel()
	select {
	case <-closed:
	case c.set.group.files.lends <- closed:
		select {
		case <-closed:
		case <-waiting.Done():
		}
	case <-waiting.Done():
	}
	return c.ctx.Err() == nil
}

// lending is where another reader asks for the file of this one, which can't read on now.
func (c *shardReader[R]) lending() <-chan chan struct{} {
	if c.reader == nil {
		return nil
	}
	return c.set.group.files.lends
}

// lend closes the shard. It is opened again, and what was read is passed over, when the reader
// can read on.
func (c *shardReader[R]) lend(closed chan struct{}) {
	c.shut()
	c.again = c.read
	close(closed)
}
