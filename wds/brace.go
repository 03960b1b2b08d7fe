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

// sequence returns the numbers of "000..127". It returns nil if item isn't a sequence.
func sequence(item string, most int) (all []string, err error) {
	first, last, _ := strings.Cut(item, "..")
	from, notFrom := strconv.ParseInt(first, 10, 64)
	to, notTo := strconv.ParseInt(last, 10, 64)
	if notFrom != nil || notTo != nil || from < 0 || to < 0 {
		return nil, nil
	}
	if max(from, to)-min(from, to) >= int64(most) {
		return nil, errMany
	}
	width := 0
	for _, bound := range []string{first, last} {
		if len(bound) > 1 && bound[0] == '0' {
			width = max(len(first), len(last))
		}
	}
	step := int64(1)
	if to < from {
		step = -1
	}
	for n := from; n != to+step; n += step {
		all = append(all, fmt.Sprintf("%0*d", width, n))
	}
	return all, nil
}
