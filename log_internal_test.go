package nwt

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"runtime"
	"strings"
	"testing"
	"testing/slogtest"

	"github.com/stretchr/testify/require"
)

// An unkind handler ends badly in each of its methods.
type unkind struct{ end func() }

func (h unkind) Enabled(context.Context, slog.Level) bool  { h.end(); return true }
func (h unkind) Handle(context.Context, slog.Record) error { h.end(); return nil }
func (h unkind) WithAttrs([]slog.Attr) slog.Handler        { h.end(); return h }
func (h unkind) WithGroup(string) slog.Handler             { h.end(); return h }

// An unkindLine handler does so only for a line.
type unkindLine struct{ unkind }

func (unkindLine) Enabled(context.Context, slog.Level) bool { return true }
func (h unkindLine) WithAttrs([]slog.Attr) slog.Handler     { return h }
func (h unkindLine) WithGroup(string) slog.Handler          { return h }

func TestALoggerThatIsDerivedLosesItsLineAndNothingElse(t *testing.T) {
	for _, end := range []func(){func() { panic("no space left") }, runtime.Goexit} {
		for _, h := range []slog.Handler{unkind{end}, unkindLine{unkind{end}}} {
			for _, bare := range []slog.Handler{carefulLog{h}, onceLog{carefulLog{h}, make(map[string]bool)}} {
				returned := make(chan any)
				go func() {
					ended := any("the goroutine ended")
					defer func() {
						if p := recover(); p != nil {
							ended = p
						}
						returned <- ended
					}()
					slog.New(bare).With("a", 1).Warn("one")
					slog.New(bare).WithGroup("g").Warn("two")
					slog.New(bare).With("a", 1).WithGroup("g").With("b", 2).Warn("three")
					ended = nil
				}()
				require.Nil(t, <-returned, "%T", bare)
			}
		}
	}
}

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

func TestTheLogsHandlerGetsAttributesAndGroups(t *testing.T) {
	var b bytes.Buffer
	require.NoError(t, slogtest.TestHandler(carefulLog{slog.NewJSONHandler(&b, nil)}, func() (lines []map[string]any) {
		for line := range strings.Lines(b.String()) {
			var m map[string]any
			require.NoError(t, json.Unmarshal([]byte(line), &m))
			lines = append(lines, m)
		}
		return lines
	}))
}
