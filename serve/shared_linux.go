package serve

import (
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

// A sharedSlot is a slot whose memory a client has mapped too, enough for the largest batch; what is
// never written takes none. Nobody can make it shorter.
type sharedSlot struct {
	slot
	file   int
	rights []byte // pass the file on; nil once the client has it
	busy   atomic.Bool
}

func (one *sharedSlot) make(l *nwt.Loader, size int) (err error) {
	if one.file, err = unix.MemfdCreate("nwt", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING); err == nil {
		err = unix.Ftruncate(one.file, int64(size))
	}
	if err == nil {
		_, err = unix.FcntlInt(uintptr(one.file), unix.F_ADD_SEALS, unix.F_SEAL_SHRINK|unix.F_SEAL_GROW|unix.F_SEAL_SEAL)
	}
	if err == nil {
		one.mem, err = unix.Mmap(one.file, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		_ = unix.Close(one.file)
		return fmt.Errorf("shared memory of %d bytes: %w", size, err)
	}
	one.PlacedBatch, one.rights = l.NewPlacedBatch(), unix.UnixRights(one.file)
	return nil
}

// share answers clients of this host until ctx ends; then wait returns.
func (s *Server) share(ctx context.Context, path string) (wait func(), err error) {
	giveWay()
	removeDead("unixpacket", path)
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
		slots [maxSharedSlots]sharedSlot
		b     = make([]byte, maxPacket)
	)
	defer func() {
		cancel()
		under.Wait()
		for i := range slots {
			if one := &slots[i]; one.mem != nil {
				_, _ = unix.Munmap(one.mem[:cap(one.mem)]), unix.Close(one.file) // they are its own
			}
		}
	}()
	next := func() (p packet, ok bool) {
		n, err := c.Read(b)
		ok = err == nil && json.Unmarshal(b[:n], &p) == nil
		return p, ok
	}
	p, ok := next()
	if !ok {
		return
	}
	about, err := description{}, errToken
	if s.knows(p.Token) {
		_, about, err = s.describe(p.Ticket)
	}
	if err != nil {
		send(c, fmt.Appendf(nil, `{"error": %s}`, jsonOf(status.Convert(err).Message())), nil)
		return
	}
	send(c, jsonOf(about), nil)
	for {
		p, ok := next()
		if !ok || p.Slot < 0 || p.Slot >= len(slots) || slots[p.Slot].busy.Swap(true) {
			return
		}
		under.Go(func() {
			one := &slots[p.Slot]
			text, err := s.loadShared(ctx, one, p.Ticket)
			if err != nil {
				text = fmt.Appendf(nil, "0 null %s", jsonOf(status.Convert(err).Message()))
			}
			rights := one.rights
			one.rights = nil
			one.busy.Store(false)
			send(c, fmt.Appendf(nil, "%d %s", p.Slot, text), rights)
		})
	}
}

// loadShared loads a batch, and tells how many follow, where in the slot it is, and the state after it.
func (s *Server) loadShared(ctx context.Context, one *sharedSlot, ticket []byte) ([]byte, error) {
	if one.mem == nil {
		if err := one.make(s.base, s.most); err != nil {
			return nil, err
		}
	}
	a, lens, err := s.lay(&one.slot, ticket)
	if err == nil {
		err = s.load(ctx, &one.slot, true)
	}
	if err != nil {
		return nil, err
	}
	size, at := len(one.mem), []int(nil) // of each column, those of lengths last
	for f := range s.fields {
		from, _, _ := one.Field(f)
		at = append(at, from)
	}
	for _, column := range lens {
		at = append(at, size)
		size += copy(one.mem[size:cap(one.mem)], column)
	}
	return fmt.Appendf(nil, "%d %s %s", a.Left, jsonOf(map[string]any{"samples": a.Samples, "shapes": a.Shapes, "at": at}), jsonOf(a.After)), nil
}

// send sends a packet, with the rights to a file if there are some. If it fails, so does Read.
func send(c *net.UnixConn, packet, rights []byte) { _, _, _ = c.WriteMsgUnix(packet, rights, nil) }

func jsonOf(v any) []byte {
	b, _ := json.Marshal(v) // of strings, integers and what is made of them
	return b
}
