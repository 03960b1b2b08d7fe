package serve

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync/atomic"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// The fields of Flight's FlightData.
const (
	fieldHeader = 2
	fieldMeta   = 3
	fieldBody   = 1000
)

// An outgoing is a FlightData whose body isn't copied on its way to the connection.
type outgoing struct {
	header, meta []byte
	body         [][]byte
	part         func() // called when the connection needs a part of the body no more; nil: nobody waits for that
	sent         func() // called once it needs nothing of it any more
	taken        bool   // sent will be called
}

const maxPart = 1 << 20 // bytes

// An incoming is a FlightData whose body goes straight to its place.
type incoming struct {
	header, meta []byte
	body         func(meta []byte, r io.Reader, size int) error
}

// A codec is gRPC's for protocol buffers, with these two beside them.
type codec struct{}

func (codec) Name() string { return "proto" }

func (codec) Marshal(v any) (mem.BufferSlice, error) {
	out, ok := v.(*outgoing)
	if !ok {
		b, err := proto.Marshal(v.(proto.Message))
		return mem.BufferSlice{mem.SliceBuffer(b)}, err
	}
	out.taken = true
	size := 0
	for _, piece := range out.body {
		size += len(piece)
	}
	head := protowire.AppendTag(nil, fieldHeader, protowire.BytesType)
	head = protowire.AppendBytes(head, out.header)
	if out.meta != nil {
		head = protowire.AppendTag(head, fieldMeta, protowire.BytesType)
		head = protowire.AppendBytes(head, out.meta)
	}
	if size > 0 {
		head = protowire.AppendTag(head, fieldBody, protowire.BytesType)
		head = protowire.AppendVarint(head, uint64(size))
	}
	buffers := mem.BufferSlice{mem.SliceBuffer(head)}
	left := &counted{of: out}
	left.n.Store(1) // this function
	for _, piece := range out.body {
		for part := range slices.Chunk(piece, maxPart) {
			if mem.IsBelowBufferPoolingThreshold(len(part)) { // gRPC wouldn't tell when it is free
				buffers = append(buffers, mem.SliceBuffer(bytes.Clone(part)))
				continue
			}
			left.n.Add(1)
			buffers = append(buffers, mem.NewBuffer(&part, left))
		}
	}
	left.Put(nil)
	return buffers, nil
}

// counted is a pool of gRPC's that counts the pieces of a body which the connection still needs.
type counted struct {
	n  atomic.Int32
	of *outgoing
}

func (c *counted) Get(int) *[]byte { panic("nothing is taken from here") }

func (c *counted) Put(*[]byte) {
	switch left := c.n.Add(-1); {
	case c.of.sent == nil:
	case left == 0:
		c.of.sent()
	default:
		c.of.part()
	}
}

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*incoming)
	if !ok {
		return proto.Unmarshal(data.Materialize(), v.(proto.Message))
	}
	r := data.Reader()
	defer r.Close()
	for {
		tag, err := binary.ReadUvarint(r)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		number, kind := protowire.DecodeTag(tag)
		if kind != protowire.BytesType {
			return fmt.Errorf("field %d of a FlightData has the wire type %d", number, kind)
		}
		size, err := binary.ReadUvarint(r)
		if err != nil || size > uint64(r.Remaining()) {
			return errors.Join(err, errCutMessage)
		}
		switch number {
		case fieldHeader:
			in.header, err = read(r, int(size))
		case fieldMeta:
			in.meta, err = read(r, int(size))
		case fieldBody:
			before := r.Remaining()
			if in.body == nil {
				_, err = read(r, int(size))
			} else if err = in.body(in.meta, r, int(size)); err == nil {
				_, err = read(r, int(size)-(before-r.Remaining())) // padding
			}
		default:
			_, err = read(r, int(size))
		}
		if err != nil {
			return err
		}
	}
}

var errCutMessage = errors.New("the message is cut")

func read(r io.Reader, n int) ([]byte, error) {
	if n < 0 {
		return nil, errCutMessage
	}
	b := make([]byte, n)
	_, err := io.ReadFull(r, b)
	return b, err
}
