package serve

import (
	"bytes"
	"cmp"
	"encoding/binary"
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
	left         func(parts int) // called when the connection needs a part of the body no more; nil: nobody waits for that
}

const maxPart = 1 << 18 // bytes: a client that takes one now and then is slow, not gone

// An incoming is a FlightData whose body, of size bytes, goes straight to its place.
type incoming struct {
	read func(meta []byte, r *mem.Reader, size int) error
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
	size := 0
	for _, piece := range out.body {
		size += len(piece)
	}
	head := protowire.AppendBytes(protowire.AppendTag(nil, fieldHeader, protowire.BytesType), out.header)
	if out.meta != nil {
		head = protowire.AppendBytes(protowire.AppendTag(head, fieldMeta, protowire.BytesType), out.meta)
	}
	if size > 0 {
		head = protowire.AppendVarint(protowire.AppendTag(head, fieldBody, protowire.BytesType), uint64(size))
	}
	buffers := mem.BufferSlice{mem.SliceBuffer(head)}
	if out.left == nil {
		return buffers, nil
	}
	left := &counted{told: out.left}
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

// counted is a pool of gRPC's that counts the parts of a body which the connection still needs.
type counted struct {
	n    atomic.Int32
	told func(parts int)
}

func (c *counted) Get(int) *[]byte { panic("nothing is taken from here") }
func (c *counted) Put(*[]byte)     { c.told(int(c.n.Add(-1))) }

func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	in, ok := v.(*incoming)
	if !ok {
		return proto.Unmarshal(data.Materialize(), v.(proto.Message))
	}
	r := data.Reader()
	defer r.Close()
	var meta []byte
	for r.Remaining() > 0 {
		tag, err := binary.ReadUvarint(r)
		size, cut := binary.ReadUvarint(r)
		number, kind := protowire.DecodeTag(tag)
		if err = cmp.Or(err, cut); err != nil || kind != protowire.BytesType || size > uint64(r.Remaining()) {
			return fmt.Errorf("field %d of a FlightData, of wire type %d, has %d bytes of %d: %v", number, kind, size, r.Remaining(), err)
		}
		if number == fieldBody { // the last
			return in.read(meta, r, int(size))
		}
		value := make([]byte, size)
		if _, err := io.ReadFull(r, value); err != nil {
			return err
		}
		if number == fieldMeta {
			meta = value
		}
	}
	return in.read(meta, r, 0)
}
