// Package promise knows which datasets outside of package nwt promise that their Load writes every
// element. It recognizes them by their type: a type that embeds one of them promises nothing.
package promise

import "reflect"

var types = map[reflect.Type]bool{}

// ToOverwrite adds a type. Only init may call it.
func ToOverwrite[T any]() { types[reflect.TypeFor[T]()] = true }

// Overwrites reports whether the type of ds was added.
func Overwrites(ds any) bool { return types[reflect.TypeOf(ds)] }
