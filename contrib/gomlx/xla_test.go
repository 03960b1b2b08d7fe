//go:build xla

package gomlx

import (
	"testing"

	_ "github.com/gomlx/go-xla/compute/xla" // .ci/xla has the plugin that it loads
	"github.com/stretchr/testify/require"
)

func TestTheBackendIsXLA(t *testing.T) {
	require.Equal(t, "xla", backend().Name())
}
