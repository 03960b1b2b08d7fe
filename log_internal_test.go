package nwt

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestALoggerThatIsDerivedSaysTheSameThingOnce(t *testing.T) {
	var b bytes.Buffer
	log := slog.New(onceLog{slog.NewTextHandler(&b, nil), make(map[string]bool)})
	for range 2 {
		log.Warn("full")
		log.With("disk", 1).Warn("full")
		log.WithGroup("g").Warn("full")
		log.With("disk", 1).Warn("fuller")
	}
	require.Equal(t, 1, strings.Count(b.String(), "msg=full\n"))
	require.Equal(t, 1, strings.Count(b.String(), "msg=fuller disk=1\n"))
	require.Equal(t, 2, strings.Count(b.String(), "\n"), &b)
}
