//go:build unix

package pydata

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// A child is a process that makes samples, and the memory that it writes them to. It belongs to one worker.
type child struct {
	from    *template
	number  uint32
	end     <-chan answer // how it has ended
	conn    *net.UnixConn
	mem     []byte
	told    [][]byte // what has come of the answer to the request under way: its parts
	rest    []byte   // and the beginning of one
	pending int      // samples of that request; 0: there is none
}

const (
	describe = 1
	layOut   = 2
	load     = 3
)

const (
	unmade byte = iota // a sample's status
	made
	failed
)

// tick is how often a worker that waits looks whether its context has ended, and what its child has made.
const tick = 50 * time.Millisecond

// newChild has a template fork a child with so many bytes of memory.
func newChild(ctx context.Context, t *template, size int) (*child, error) {
	file, err := newMemory()
	if err != nil {
		return nil, fmt.Errorf("memory of %d bytes for samples: %w", size, err)
	}
	defer file.Close()
	if err := file.Truncate(int64(size)); err != nil {
		return nil, fmt.Errorf("memory of %d bytes for samples: %w", size, err)
	}
	mem, err := unix.Mmap(int(file.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, fmt.Errorf("memory of %d bytes for samples: %w", size, err)
	}
	conn, theirs, err := socketpair()
	if err != nil {
		_ = unix.Munmap(mem)
		return nil, err
	}
	number, end, err := t.fork(ctx, theirs, file)
	_ = theirs.Close() // before the template forks another child, so that its end is seen at once
	if err != nil {
		return nil, errors.Join(err, conn.Close(), unix.Munmap(mem))
	}
	return &child{from: t, number: number, end: end, conn: conn, mem: mem}, nil
}

// close ends the child: it may be in the middle of a sample.
func (c *child) close() {
	c.from.kill(c.number)
	_ = c.conn.Close()
	_ = unix.Munmap(c.mem)
}

// send begins a request.
func (c *child) send(what, n uint32, rest []byte) error {
	c.told, c.rest = nil, nil
	head := binary.LittleEndian.AppendUint32(binary.LittleEndian.AppendUint32(nil, what), n)
	_, err := c.conn.Write(append(head, rest...))
	return err
}

// errSilent says that a child has taken too long for a sample.
var errSilent = errors.New("no sample came in time")

// await waits for the answer to a request, whose parts are then in c.told. It returns the error of ctx, in which
// case the answer is still to come; errSilent if no sample was finished for the time of timeout, counted in ticks,
// so that a computer's sleep doesn't count; or how the child has ended.
func (c *child) await(ctx context.Context, timeout time.Duration) error {
	stop := context.AfterFunc(ctx, func() { _ = c.conn.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	done, silent := c.made(), time.Duration(0)
	buf := make([]byte, 4096)
	for {
		for len(c.rest) >= 4 {
			n := 4 + int(binary.LittleEndian.Uint32(c.rest))
			if n == 4 {
				c.pending = 0
				return nil
			}
			if len(c.rest) < n {
				break
			}
			c.told, c.rest = append(c.told, c.rest[4:n]), c.rest[n:]
		}
		if err := c.conn.SetReadDeadline(time.Now().Add(tick)); err != nil {
			return err
		}
		n, err := c.conn.Read(buf)
		c.rest = append(c.rest, buf[:n]...)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case !errors.Is(err, os.ErrDeadlineExceeded):
			if err != nil {
				return errors.New("the process that makes it has ended" + c.howEnded())
			}
		case c.made() > done:
			done, silent = c.made(), 0
		default:
			if silent += tick; timeout > 0 && silent >= timeout {
				return errSilent
			}
		}
	}
}

// howEnded says how the child has ended, if the template tells.
func (c *child) howEnded() string {
	select {
	case a := <-c.end:
		switch {
		case a.Ended == nil:
			return ", as all have"
		case *a.Ended == -int(unix.SIGKILL):
			return ": it was killed, perhaps because memory ran out"
		case *a.Ended < 0:
			return fmt.Sprintf(": signal %d, %v", -*a.Ended, unix.Signal(-*a.Ended))
		default:
			return fmt.Sprintf(", with status %d", *a.Ended)
		}
	case <-time.After(time.Second): // it has only closed its connection
		return ""
	}
}

// made returns how many samples of the request the child has finished.
func (c *child) made() (n int) {
	for n < c.pending && c.mem[n] != unmade {
		n++
	}
	return n
}

// describe asks for the fields of the first sample.
func (c *child) describe(ctx context.Context) (about about, err error) {
	if err := c.send(describe, 0, nil); err != nil {
		return about, err
	}
	if err = c.await(ctx, 0); err == nil {
		err = json.Unmarshal(c.told[0], &about)
	}
	if err == nil && about.Failed != "" {
		err = errors.New(about.Failed)
	}
	if err != nil {
		err = fmt.Errorf("sample 0: %w", err)
	}
	return about, err
}
