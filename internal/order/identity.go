// Package order is which samples make up which batch, as arithmetic.
package order

import (
	"crypto/sha256"
	"encoding/binary"
)

// An Identity tells orders apart by four things that they depend on. Of each it has a hash of 16
// bits, or 0 if it isn't known.
type Identity uint64

// What an order depends on.
const (
	Length = iota
	Seed
	Sampler
	Data
)

// Identify returns the identity of an order that depends on these; "" isn't known.
func Identify(length, seed, sampler, data string) (id Identity) {
	for i, of := range []string{Length: length, Seed: seed, Sampler: sampler, Data: data} {
		if of != "" {
			sum := sha256.Sum256([]byte(of))
			id |= Identity(1+binary.LittleEndian.Uint64(sum[:])%0xffff) << (16 * i)
		}
	}
	return id
}

// Differs reports whether two orders are known to depend on different things of a kind.
func (id Identity) Differs(other Identity, kind int) bool {
	a, b := uint16(id>>(16*kind)), uint16(other>>(16*kind))
	return a != b && a != 0 && b != 0
}
