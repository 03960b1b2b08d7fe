package plot

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"strings"

	"golang.org/x/image/font/sfnt"
	"golang.org/x/image/math/fixed"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/vg"
)

// outlined draws text as outlines, so that it looks the same in a viewer that lacks the fonts of gonum/plot.
type outlined struct {
	vg.CanvasWriterTo
	words []string // the words drawn so far, in order
}

// FillString implements vg.Canvas.
func (c *outlined) FillString(face font.Face, at vg.Point, text string) {
	c.words = append(c.words, text)
	var path vg.Path
	var glyph sfnt.Buffer
	em := fixed.Int26_6(face.Face.UnitsPerEm()) // outlines in the font's own units, as font.Face.Width measures
	scale := face.Font.Size / vg.Length(em)
	last := sfnt.GlyphIndex(0)
	for i, letter := range text {
		index, err := face.Face.GlyphIndex(&glyph, letter)
		if err != nil {
			panic(err) // the fonts are gonum's own
		}
		if i > 0 {
			if kern, err := face.Face.Kern(&glyph, last, index, em, 0); err == nil {
				at.X += scale * vg.Length(kern)
			}
		}
		segments, err := face.Face.LoadGlyph(&glyph, index, em, nil)
		if err != nil {
			panic(err)
		}
		for j, s := range segments {
			p := [3]vg.Point{}
			for k, arg := range s.Args {
				p[k] = vg.Point{X: at.X + scale*vg.Length(arg.X), Y: at.Y - scale*vg.Length(arg.Y)}
			}
			switch s.Op {
			case sfnt.SegmentOpMoveTo:
				if j > 0 {
					path.Close()
				}
				path.Move(p[0])
			case sfnt.SegmentOpLineTo:
				path.Line(p[0])
			case sfnt.SegmentOpQuadTo:
				path.QuadTo(p[0], p[1])
			case sfnt.SegmentOpCubeTo:
				path.CubeTo(p[0], p[1], p[2])
			}
		}
		if len(segments) > 0 {
			path.Close()
		}
		advance, err := face.Face.GlyphAdvance(&glyph, index, em, 0)
		if err != nil {
			panic(err)
		}
		at.X += scale * vg.Length(advance)
		last = index
	}
	if len(path) > 0 {
		c.Fill(path)
	}
}

// described is an SVG whose description contains its words, for screen readers.
type described struct{ outlined }

// WriteTo implements io.WriterTo.
func (c *described) WriteTo(w io.Writer) (int64, error) {
	var picture bytes.Buffer
	if _, err := c.CanvasWriterTo.WriteTo(&picture); err != nil {
		return 0, err
	}
	head, body, _ := bytes.Cut(picture.Bytes(), []byte("<g "))
	n, err := fmt.Fprintf(w, "%s<desc>%s</desc>\n<g %s", head, html.EscapeString(strings.Join(c.words, "\n")), body)
	return int64(n), err
}
