// Package order computes which samples make up which batch.
package order

import (
	"crypto/sha256"
	"encoding/binary"
)

// An Identity identifies an order by four things that it depends on. It holds a hash of 16 bits of each,
// or 0 if it isn't known.
type Identity uint64

// These are the things that an order depends on.
const (
	Length = iota
	Seed
	Sampler
	Data
)

// Identify returns the identity of an order that depends on these; "" means that one isn't known.
func Identify(length, seed, sampler, data string) (id Identity) {
	for i, of := range []string{Length: length, Seed: seed, Sampler: sampler, Data: data} {
		if of != "" {
			sum := sha256.Sum256([]byte(of))
			id |= Identity(1+binary.LittleEndian.Uint64(sum[:])%0xffff) << (16 * i)
		}
	}
	return id
}

// Differs reports whether two orders are known to differ in what they depend on, in one kind of thing.
func (id Identity) Differs(other Identity, kind int) bool {
	a, b := uint16(id>>(16*kind)), uint16(other>>(16*kind))
	return a != b && a != 0 && b != 0
}
