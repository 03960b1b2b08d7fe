package serve

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/status"

	"github.com/nwt-go/nwt"
)

// A client of this host asks over a Unix socket of packets, each a JSON value, for batches in slots of
// shared memory. It alone decides when a slot is used again. Its first packet is answered by a
// description, the others by where the batch lies:
//
//	{"token": "…", "ticket": {"rank": 0, "world": 8}}  → a description
//	{"slot": 2, "ticket": {…}}                         → 2 LEFT LAYOUT STATE, or 2 0 null ERROR
//
// LEFT is how many batches follow. What stands behind it is JSON; most layouts of a client are alike.
// The first answer in a slot brings its file. The server keeps slots as long as the connection.
const (
	maxPacket      = 1 << 16 // bytes
	maxSharedSlots = 64
)

type packet struct {
	Token  string          `json:"token"`
	Slot   int             `json:"slot"`
	Ticket json.RawMessage `json:"ticket"`
}

// A placement tells where a batch lies.
type placement struct {
	Samples int     `json:"samples"`
	Shapes  [][]int `json:"shapes"`
	At      []int   `json:"at"` // of each column, those of lengths last
}

// A sharedSlot is a slot whose memory a client has mapped too. Nobody can make it shorter.
type sharedSlot struct {
	slot
	whole  []byte // for the largest batch; what is never written takes no memory
	rights []byte // pass the file on; nil once the client has it
	file   int
	busy   atomic.Bool // a batch is being loaded
}

func newSharedSlot(l *nwt.Loader, size int) (*sharedSlot, error) {
	file, err := unix.MemfdCreate("nwt", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	one := &sharedSlot{slot: slot{PlacedBatch: l.NewPlacedBatch()}, file: file, rights: unix.UnixRights(file)}
	if err == nil {
		err = unix.Ftruncate(file, int64(size))
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(file), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		one.whole, err = unix.Mmap(file, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		_ = unix.Close(file)
		return nil, fmt.Errorf("shared memory of %d bytes: %w", size, err)
	}
	return one, nil
}

// share answers clients of this host until ctx ends; then wait returns.
func (s *Server) share(ctx context.Context, path string) (wait func(), err error) {
	giveWay()
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		return nil, err
	}
	var clients sync.WaitGroup
	context.AfterFunc(ctx, func() { _ = l.Close() })
	clients.Go(func() {
		for {
			c, err := l.AcceptUnix()
			if err != nil {
				return // it was closed
			}
			clients.Go(func() { s.shareWith(ctx, c) })
		}
	})
	return clients.Wait, nil
}

// giveWay has no thread of this process take the CPU from the client whose packet wakes it.
func giveWay() {
	threads, _ := os.ReadDir("/proc/self/task") // those to come are as the thread that starts them
	for _, thread := range threads {
		id, _ := strconv.Atoi(thread.Name())
		if attr, err := unix.SchedGetAttr(id, 0); err == nil && attr.Policy == unix.SCHED_NORMAL {
			attr.Policy = unix.SCHED_BATCH
			_ = unix.SchedSetAttr(id, attr, 0) // then the client waits longer
		}
	}
}

// shareWith answers one client, until it goes or sends what it must not.
func (s *Server) shareWith(ctx context.Context, c *net.UnixConn) {
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(ctx, func() { _ = c.Close() })
	var (
		under sync.WaitGroup
		slots [maxSharedSlots]*sharedSlot
		known bool
	)
	defer func() {
		cancel()
		under.Wait()
		for _, one := range slots {
			if one != nil {
				_, _ = unix.Munmap(one.whole), unix.Close(one.file) // they are its own
			}
		}
	}()
	for b := make([]byte, maxPacket); ; {
		var p packet
		n, err := c.Read(b)
		if err != nil || json.Unmarshal(b[:n], &p) != nil {
			return
		}
		if !known {
			_, about, err := s.describe(p.Ticket)
			if known = s.knows(p.Token) && err == nil; !known {
				send(c, fmt.Appendf(nil, `{"error": %s}`, jsonOf(status.Convert(cmp.Or(err, errToken)).Message())), nil)
				return
			}
			send(c, jsonOf(about), nil)
			continue
		}
		if p.Slot < 0 || p.Slot >= len(slots) {
			return
		}
		one := slots[p.Slot]
		if one == nil {
			if one, err = newSharedSlot(s.base, s.most); err != nil {
				send(c, fmt.Appendf(nil, "%d 0 null %s", p.Slot, jsonOf(err.Error())), nil)
				continue
			}
			slots[p.Slot] = one
		}
		if one.busy.Swap(true) {
			return
		}
		under.Go(func() {
			left, where, after, err := s.loadShared(ctx, one, p.Ticket)
			if err != nil {
				left, where, after = 0, nil, status.Convert(err).Message()
			}
			rights := one.rights
			one.rights = nil
			one.busy.Store(false)
			send(c, fmt.Appendf(nil, "%d %d %s %s", p.Slot, left, jsonOf(where), jsonOf(after)), rights)
		})
	}
}

// loadShared loads a batch, and tells how many follow, where in the slot it is, and the state after it.
func (s *Server) loadShared(ctx context.Context, one *sharedSlot, ticket []byte) (left int, where *placement, after any, err error) {
	var a answer
	one.places = one.places[:0]
	if err := s.place(&one.slot, ticket, &a); err != nil {
		return 0, nil, nil, err
	}
	size, err := one.Set(one.places)
	if err != nil {
		return 0, nil, nil, err
	}
	one.mem = one.whole[:size]
	one.In(one.mem)
	lens := s.lay(&one.slot, &a)
	if err := s.load(ctx, &one.slot, &a, false); err != nil {
		return 0, nil, nil, err
	}
	where = &placement{Samples: a.Samples, Shapes: a.Shapes}
	for f := range s.fields {
		from, _, _ := one.Field(f)
		where.At = append(where.At, from)
	}
	for _, column := range lens {
		where.At = append(where.At, size)
		size += copy(one.whole[size:], column)
	}
	return a.Left, where, a.After, nil
}

// send sends a packet, with the rights to a file if there are some. If it fails, so does Read.
func send(c *net.UnixConn, packet, rights []byte) { _, _, _ = c.WriteMsgUnix(packet, rights, nil) }

func jsonOf(v any) []byte {
	b, _ := json.Marshal(v) // of strings, integers and what is made of them
	return b
}
