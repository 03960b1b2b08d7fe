package nwt_test

import (
	"context"
	"encoding/binary"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nwt-go/nwt"
)

func mixedOf(t *testing.T, m nwt.Mix, streams ...nwt.Stream) nwt.Dataset {
	t.Helper()
	ds, err := nwt.MixedStreams(m, 7, streams...)
	require.NoError(t, err)
	return ds
}

// breaking is shelves whose calls do something else first.
type breaking struct {
	*shelves
	onShards func() int
	onOpen   func(shard int) error
	onNext   func(shard, record int) error
	onClose  func(shard int) error
	onLoad   func(dst *nwt.Sample)
}

func (s *breaking) Shards() int {
	if s.onShards != nil {
		return s.onShards()
	}
	return s.shelves.Shards()
}

func (s *breaking) Open(ctx context.Context, shard int) (nwt.ShardReader, error) {
	if s.onOpen != nil {
		if err := s.onOpen(shard); err != nil {
			return nil, err
		}
	}
	r, err := s.shelves.Open(ctx, shard)
	return &breakingReader{ShardReader: r, s: s, shard: shard}, err
}

func (s *breaking) Load(ctx context.Context, r *nwt.Record, dst *nwt.Sample) error {
	if s.onLoad != nil {
		s.onLoad(dst)
	}
	return s.shelves.Load(ctx, r, dst)
}

// shelves is a stream of numbered samples in shards of given lengths.
type shelves struct {
	lengths []int
	open    atomic.Int32
	failAt  int // number of a record that can't be read; −1: none
}

func (s *shelves) Fields() []nwt.Field {
	return []nwt.Field{{Name: "i", Type: nwt.Int64}, {Name: "noise", Type: nwt.Int64}}
}

func (s *shelves) Shards() int { return len(s.lengths) }

func (s *shelves) Open(_ context.Context, shard int) (nwt.ShardReader, error) {
	s.open.Add(1)
	first := 0
	for _, n := range s.lengths[:shard] {
		first += n
	}
	return &shelf{s: s, next: first, end: first + s.lengths[shard]}, nil
}

func (s *shelves) Load(_ context.Context, r *nwt.Record, dst *nwt.Sample) error {
	nwt.Values[int64](dst, 0)[0] = int64(binary.LittleEndian.Uint64(r.Data))
	nwt.Values[int64](dst, 1)[0] = dst.Rand().Int64()
	return nil
}

func newShelves(lengths ...int) *shelves { return &shelves{lengths: lengths, failAt: -1} }
