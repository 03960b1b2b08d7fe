package lanes

import "math"

// Steps says what one of several ranks takes: the positions of each step are ordered by lane and then
// shared among the ranks. So a rank reads its part of the lanes, and neighbours may share a lane.
//
// All steps of an epoch have the same length, except the last two. All epochs have the same length,
// except the first, which begins at Base.
type Steps struct {
	Lanes       int
	Origin      int64 // position at which the first epoch begins
	Base        int
	Epoch       int64 // positions per epoch
	Step        int   // positions per step
	Head, Whole int   // number of steps in the first epoch, math.MaxInt if it has no end, and in every later one
	Len         int   // number of steps in the run; math.MaxInt if it has no end
	// Span returns the positions of step k, first … after−1. Ordered by lane, those numbered low … high−1
	// are the rank's.
	Span func(k int) (first, after int64, low, high int)
}

// Share returns the offsets of a lane that the rank takes in step k.
func (s *Steps) Share(lane, k int) (from, end int64) {
	first, after, low, high := s.Span(k)
	in := below(after, lane, s.Lanes) - below(first, lane, s.Lanes) // how many of the step's positions are in the lanes before
	from = offset(first, lane, s.Lanes)
	n := offset(after, lane, s.Lanes) - from
	return from + min(max(0, int64(low)-in), n), from + min(max(0, int64(high)-in), n)
}

// at returns the step that contains the position at an offset of a lane, or the step before.
func (s *Steps) at(lane int, offset int64) int {
	p := offset*int64(s.Lanes) + int64(lane) - s.Origin
	if p < s.Epoch {
		return int(max(0, min((p-int64(s.Base))/int64(s.Step), int64(s.Head-1))))
	}
	epoch, in := int(p/s.Epoch), int(p%s.Epoch)
	return s.Head + (epoch-1)*s.Whole + min(in/s.Step, s.Whole-1)
}

// Each implements Taker.
func (s *Steps) Each(lane int, from, end int64, f func(from, end int64)) {
	last := s.at(lane, end-1)
	for k := s.at(lane, from); k < s.Len && k-1 <= last; k++ {
		if low, high := s.Share(lane, k); max(low, from) < min(high, end) {
			f(max(low, from), min(high, end))
		}
	}
}

// Next implements Taker. Which part of a lane the rank takes in a step depends on the lane in which the
// step begins. So Next need only look at as many steps, and at as many epochs, as can begin in different
// lanes.
func (s *Steps) Next(lane int, from int64) int64 {
	k := s.at(lane, from)
	for epochs := s.Lanes/gcd(int(s.Epoch%int64(s.Lanes)), s.Lanes) + 1; epochs >= 0 && k < s.Len; epochs-- {
		end := s.Len
		if k < s.Head {
			end = s.Head
		} else if rest := (k - s.Head) % s.Whole; s.Whole-rest < s.Len-k {
			end = k + s.Whole - rest
		}
		for regular := min(k+s.Lanes/gcd(s.Step, s.Lanes)+1, end); k < end; k++ {
			if k == regular {
				if end == math.MaxInt {
					return -1
				}
				k = max(k, end-2)
			}
			if low, high := s.Share(lane, k); max(low, from) < high {
				return max(low, from)
			}
		}
	}
	return -1
}

// Each returns how many positions each of some ranks takes from a step, if steps are as short as possible
// and contain each lane equally often.
func Each(lanes, ranks int) int { return lanes / gcd(lanes, ranks) }

func gcd(a, b int) int {
	for b > 0 {
		a, b = b, a%b
	}
	return a
}
