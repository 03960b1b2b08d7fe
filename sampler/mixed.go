package sampler

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/nwt-go/nwt"
	"github.com/nwt-go/nwt/internal/mixture"
	"github.com/nwt-go/nwt/internal/permute"
)

// Mixed draws n samples per epoch from the parts of a [nwt.Concat], by weights. For example, it mixes
// languages, or brings easy samples before hard ones. In each phase of Mix.Phases, the share of part k is
// Weights[k] / Σ Weights.
//
// Training is cut into blocks of Mix.Block positions. The last block of a phase may be shorter. In each
// block, every part gets its share of the positions, in random order. Fractions of samples are carried to the
// next block, so after any number of blocks a part has its share to within a few samples. If a part with a
// weight above 0 gets no sample in its whole phase, Mixed returns an error.
//
// Each part has its own epochs, which depend neither on n nor on the part's share. All its samples come once,
// shuffled. Then all come again in another order, and so on. So if two parts have the same weight, the
// samples of the smaller part come more often. Within a block, the end of one epoch of a part may mix with
// the start of the next.
//
// The draws aren't stored. Each is computed from its position, in about 0.2 µs.
func Mixed(n int, m nwt.Mix, seed uint64) (nwt.Sampler, error) {
	var errs []error
	bad := func(value any, format string, args ...any) {
		errs = append(errs, optionError("Mixed", value, format, args...))
	}
	if n < 1 || n > mixture.MaxLen {
		bad(n, "the length of an epoch must be 1 … %d", mixture.MaxLen)
	}
	if len(m.Parts) == 0 {
		bad(nil, "Mix.Parts must have at least 1 part")
	}
	s := &mixed{n: n, seed: seed}
	from, key := 0, permute.SeedKey(seed)
	for k, length := range m.Parts {
		if length < 0 || length > math.MaxInt-from {
			bad(length, "Mix.Parts[%d] must be at least 0, and all parts at most %d", k, math.MaxInt)
			break
		}
		var perm permute.Permutation
		if length > 0 {
			perm = permute.New(length)
		}
		s.parts = append(s.parts, mixPart{from, perm, permute.Mix64(key + uint64(k+1)*permute.Golden)})
		from += length
	}
	s.mix = mixture.New(m.Block)
	for _, p := range m.Phases {
		s.mix.Add(p.Samples, p.Weights)
	}
	s.mix.Check(len(m.Parts), bad)
	for i, p := range m.Phases {
		for k, w := range p.Weights[:min(len(p.Weights), len(s.parts))] {
			if s.parts[k].perm.Len() == 0 && w != 0 {
				bad(w, "Mix.Phases[%d].Weights[%d] must be 0: part %d has no samples", i, k, k)
			}
		}
	}
	if more := len(errs) - 10; more > 0 {
		errs = append(errs[:10], optionError("Mixed", nil, "%d more such numbers can't be used", more))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	s.plan = s.mix.Plan(seed, 0, 1)
	return s, nil
}

type mixed struct {
	n     int
	seed  uint64
	parts []mixPart
	mix   *mixture.Mix
	plan  *mixture.Plan
}

type mixPart struct {
	from int                 // its first index
	perm permute.Permutation // permutes its samples
	key  uint64
}

func (s *mixed) Len() int { return s.n }

// LastIndex returns the last index of the last part that has a weight in any phase.
func (s *mixed) LastIndex() int {
	for k := len(s.parts) - 1; k >= 0; k-- {
		if slices.ContainsFunc(s.mix.Weights, func(weights []float64) bool { return weights[k] > 0 }) {
			return s.parts[k].from + s.parts[k].perm.Len() - 1
		}
	}
	return -1
}

func (s *mixed) String() string {
	return fmt.Sprintf("Mixed(%d, %d parts, %d phases, blocks of %d, seed %d)", s.n, len(s.parts), len(s.mix.Weights), s.mix.Block, s.seed)
}

func (s *mixed) Fingerprint() string {
	var fingerprint strings.Builder
	fingerprint.WriteString(fmt.Sprint(s, " ", s.mix.Samples, s.mix.Weights))
	for _, part := range s.parts {
		fingerprint.WriteString(fmt.Sprint(" ", part.perm.Len()))
	}
	return fingerprint.String()
}

func (s *mixed) At(epoch, i int) int {
	permute.CheckPosition(i, s.n)
	k, draw := s.plan.At(uint64(epoch)*uint64(s.n) + uint64(i))
	part := &s.parts[k]
	partEpoch, at := draw/uint64(part.perm.Len()), draw%uint64(part.perm.Len())
	return part.from + part.perm.At(permute.EpochKey(part.key, int(partEpoch)), int(at))
}
