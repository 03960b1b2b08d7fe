package wds

import (
	"fmt"
	"strconv"
	"strings"
)

// maxShards keeps a mistyped brace list from taking all memory.
const maxShards = 10_000_000

var errMany = fmt.Errorf("more than %d shards", maxShards)

// expandAll returns the names that brace lists stand for; most is the most that it returns.
func expandAll(lists []string, most int) (names []string, err error) {
	for _, list := range lists {
		more, err := expand(list, most-len(names))
		if err != nil {
			return nil, err
		}
		names = append(names, more...)
	}
	return names, nil
}

// expand returns the names that a brace list stands for, as in a shell. Braces that aren't a list stand
// for themselves.
func expand(list string, most int) (names []string, err error) {
	if most < 1 {
		return nil, errMany
	}
	for at := range len(list) {
		var middle []string
		switch items, end := alternatives(list[at:]); len(items) {
		case 0:
			continue
		case 1:
			if middle, err = sequence(items[0], most); middle == nil && err == nil {
				continue
			}
			fallthrough
		default:
			if len(items) > 1 {
				middle, err = expandAll(items, most)
			}
			if err != nil {
				return nil, err
			}
			rest, err := expand(list[at+end:], most/len(middle))
			for _, m := range middle {
				for _, r := range rest {
					names = append(names, list[:at]+m+r)
				}
			}
			return names, err
		}
	}
	return []string{list}, nil
}

// alternatives returns the items between the commas of the braces at the beginning of s, and where the
// braces end. It returns none if s doesn't begin with a brace, or if the brace isn't closed.
func alternatives(s string) (items []string, end int) {
	depth, from := 0, 1
	for i := range len(s) {
		switch s[i] {
		case '{':
			depth++
		case '}':
			depth--
		}
		if depth == 0 || depth == 1 && s[i] == ',' {
			if i > 0 {
				items = append(items, s[from:i])
			}
			if from = i + 1; depth == 0 {
				return items, from
			}
		}
	}
	return nil, 0
}

// sequence returns the numbers or letters of "000..127", or with a step of "0..9..3". It returns nil if
// item isn't a sequence.
func sequence(item string, most int) (all []string, err error) {
	parts := strings.Split(item, "..")
	if len(parts) < 2 || len(parts) > 3 {
		return nil, nil
	}
	bounds, step := [2]int64{}, int64(1)
	letters := len(parts[0]) == 1 && len(parts[1]) == 1 && parts[0] >= "A" && parts[1] >= "A"
	for i, part := range parts {
		switch {
		case i < 2 && letters:
			bounds[i] = int64(part[0])
			continue
		case i < 2:
			bounds[i], err = strconv.ParseInt(part, 10, 64)
		default:
			step, err = strconv.ParseInt(part, 10, 64)
		}
		if err != nil {
			return nil, nil
		}
	}
	from, to := bounds[0], bounds[1]
	far, stride := uint64(to)-uint64(from), uint64(max(step, -step, 1))
	if to < from {
		far = -far
	}
	if far/stride >= uint64(most) {
		return nil, errMany
	}
	width := 0
	for _, bound := range parts[:2] {
		if digits := strings.TrimPrefix(bound, "-"); len(digits) > 1 && digits[0] == '0' {
			width = max(len(parts[0]), len(parts[1]))
		}
	}
	for i := range far/stride + 1 {
		n := from + int64(i*stride)
		if to < from {
			n = from - int64(i*stride)
		}
		if letters {
			all = append(all, string(rune(n)))
		} else {
			all = append(all, fmt.Sprintf("%0*d", width, n))
		}
	}
	return all, nil
}
