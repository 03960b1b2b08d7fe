package main

import (
	"context"
	"encoding/binary"
	"encoding/gob"
	"errors"
	"fmt"
	"net"
	"time"
)

// A group lets the ranks exchange values through rank 0. It replaces the collective
// operations that a real training program has: MPI's, NCCL's, Gloo's.
// It trusts its network.
type group struct {
	rank  int
	peers []peer // on rank 0: ranks 1, 2, …; on the others: rank 0
}

type peer struct {
	conn net.Conn
	enc  *gob.Encoder
	dec  *gob.Decoder
}

const (
	joinTime   = time.Minute      // for all ranks to arrive
	gatherTime = 10 * time.Minute // for the slowest rank; the first time this includes its tuning
)

// hello is the first message of a rank.
type hello struct {
	Magic       [4]byte
	Rank, World uint32
}

var magic = [4]byte{'r', 'n', 'k', '1'}

// join connects to the other ranks of the world at an address of rank 0. A signal doesn't interrupt it:
// the ranks stop together, after their first step.
func join(address string, rank, world int) (*group, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), joinTime, fmt.Errorf("not all %d ranks came in %v", world, joinTime))
	defer cancel()
	g := &group{rank: rank}
	var err error
	switch {
	case world == 1:
	case rank == 0:
		err = g.accept(ctx, address, world)
	default:
		err = g.dial(ctx, address, world)
	}
	if err != nil {
		g.close()
		if ctx.Err() != nil {
			err = fmt.Errorf("%w: %w", context.Cause(ctx), err)
		}
		return nil, fmt.Errorf("rank %d of %d at %s: %w", rank, world, address, err)
	}
	return g, nil
}

func (g *group) accept(ctx context.Context, address string, world int) error {
	listener, err := listen(ctx, address)
	if err != nil {
		return err
	}
	defer listener.Close()
	defer context.AfterFunc(ctx, func() { listener.Close() })()
	g.peers = make([]peer, world-1)
	for missing := world - 1; missing > 0; {
		conn, err := listener.Accept()
		if err != nil {
			return err
		}
		var h hello
		conn.SetDeadline(time.Now().Add(5 * time.Second))
		err = binary.Read(conn, binary.BigEndian, &h)
		if err != nil || h.Magic != magic || int(h.World) != world || h.Rank < 1 || int(h.Rank) >= world || g.peers[h.Rank-1].conn != nil {
			conn.Close() // not one of the ranks
			continue
		}
		g.peers[h.Rank-1] = newPeer(conn)
		missing--
	}
	return nil
}

// listen retries until the name is known: a pod's name may become known only after the pod has started.
func listen(ctx context.Context, address string) (net.Listener, error) {
	for {
		listener, err := new(net.ListenConfig).Listen(ctx, "tcp", address)
		if unknown := new(net.DNSError); !errors.As(err, &unknown) || ctx.Err() != nil {
			return listener, err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// dial retries until rank 0 listens.
func (g *group) dial(ctx context.Context, address string, world int) error {
	for {
		conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
		if err == nil {
			g.peers = []peer{newPeer(conn)}
			return binary.Write(conn, binary.BigEndian, hello{magic, uint32(g.rank), uint32(world)})
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return err
		}
	}
}

func newPeer(conn net.Conn) peer {
	return peer{conn, gob.NewEncoder(conn), gob.NewDecoder(conn)}
}

func (g *group) close() {
	for _, p := range g.peers {
		if p.conn != nil {
			p.conn.Close()
		}
	}
}

// gather gives every rank the values of all ranks, in the order of the ranks. If a rank has ended, gather
// fails, so that no rank waits for it.
func gather[T any](g *group, mine T) (all []T, err error) {
	for _, p := range g.peers {
		p.conn.SetDeadline(time.Now().Add(gatherTime))
	}
	if g.rank > 0 {
		err = errors.Join(g.peers[0].enc.Encode(mine), g.peers[0].dec.Decode(&all))
		if err != nil {
			return nil, fmt.Errorf("rank 0 has gone: %w", err)
		}
		return all, nil
	}
	all = make([]T, 1+len(g.peers))
	all[0] = mine
	for i, p := range g.peers {
		if err := p.dec.Decode(&all[1+i]); err != nil {
			return nil, fmt.Errorf("rank %d has gone: %w", 1+i, err)
		}
	}
	for i, p := range g.peers {
		if err := p.enc.Encode(all); err != nil {
			return nil, fmt.Errorf("rank %d has gone: %w", 1+i, err)
		}
	}
	return all, nil
}
