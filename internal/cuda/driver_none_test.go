//go:build linux && !android && (amd64 || arm64) && !cgo && !nwt_purego

package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWithoutCgoAGPUThatIsThereIsAnErrorThatSaysHowToBuild(t *testing.T) {
	before := deviceFiles
	defer func() { deviceFiles = before }()
	deviceFiles = []string{"/none", t.TempDir()}
	_, err := Open(0)
	require.NotErrorIs(t, err, ErrNoDevice)
	require.EqualError(t, err, "there seems to be a GPU, but this binary was built without cgo, so that it is static; build it with CGO_ENABLED=1, or with -tags nwt_purego and it needs glibc to run")

	for _, hidden := range []string{"", "-1"} {
		t.Setenv("CUDA_VISIBLE_DEVICES", hidden)
		_, err = Open(0)
		require.ErrorIs(t, err, ErrNoDevice)
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", "0")
	deviceFiles = []string{"/none"}
	_, err = Open(0)
	require.ErrorIs(t, err, ErrNoDevice)
}
