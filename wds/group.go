package wds

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"hash/maphash"
	"io"
	"log/slog"
	"slices"
	"strings"

	"github.com/nwt-go/nwt/internal/files"
)

// A grouper reads the records of a tar file.
type grouper struct {
	of    *stream
	shard string
	in    *ended
	tar   *tar.Reader
	begun bool                // a header has been read
	done  bool                // the shard's end is proved
	seen  map[uint64]struct{} // hashes of the keys so far
	left  string              // a file that was skipped as a leftover; "": none
	// located reports of which files, by extension, only the place is read; nil: of none.
	located func(ext string) bool
	// ahead is the header of a file whose content hasn't been read: the first file of the next record.
	// The fields below are its key and extension.
	ahead    *tar.Header
	key, ext string
}

func (s *stream) newGrouper(shard string, r *source) (*grouper, error) {
	in, err := newEnded(r)
	return &grouper{of: s, shard: shard, in: in, tar: tar.NewReader(in), seen: map[uint64]struct{}{}}, err
}

// next reads the next record into r, and reuses r's memory. After the last record it returns io.EOF if
// the shard's end is proved. If files are readable but make no record, r holds the error.
func (g *grouper) next(r *Record) error {
	r.reset(g.shard)
	key := "" // of the record, however long it is
	for {
		if more, err := g.another(key); !more {
			return err
		}
		if key == "" {
			key, r.Key = g.key, g.key
			if len(key) > g.of.limits.Name {
				r.Key = strings.Clone(short(key))
			}
		}
		h := g.ahead
		g.ahead = nil
		if r.err != nil {
			continue // the rest of the record is skipped
		}
		if r.err = g.unfit(r, h); r.err != nil {
			continue
		}
		f := file{ext: g.ext, size: h.Size}
		if g.located != nil {
			f.at = g.in.r.(*source).position()
		}
		var err error
		if f.left = g.located != nil && g.located(g.ext); !f.left {
			if r.data, err = appendFrom(r.data, g.tar, int(h.Size)); err != nil {
				return fmt.Errorf("%s: %s: %w", g.shard, short(g.key+"."+g.ext), noEnd(err))
			}
		}
		f.end = len(r.data)
		r.files = append(r.files, f)
	}
}

// skip passes over the next record, and fails where next would.
func (g *grouper) skip() error {
	for key := ""; ; key = g.key {
		if more, err := g.another(key); !more {
			return err
		}
		g.ahead = nil
	}
}

// another makes sure that ahead is another file of the record with this key or, if the key is "", of any
// record. If it returns false, the record is complete or there is an error: io.EOF, or the reason why the
// shard can't be read on.
func (g *grouper) another(key string) (bool, error) {
	switch err := g.advance(); {
	case err == io.EOF && key != "":
		return false, nil
	case err == io.EOF:
		return false, io.EOF
	case err != nil && g.key != "":
		return false, fmt.Errorf("%s: after %s: %w", g.shard, short(g.key+"."+g.ext), noEnd(err))
	case err != nil && !g.begun:
		return false, fmt.Errorf("%s: %w", g.shard, g.in.explain(err))
	case err != nil:
		return false, fmt.Errorf("%s: %w", g.shard, noEnd(err))
	case key == "":
		g.note()
	}
	return key == "" || key == g.key, nil
}

// maxSeen is how many keys of a shard are remembered.
const maxSeen = 100_000

// note records the key of a record that begins, and warns if the shard has had it before.
func (g *grouper) note() {
	hash := maphash.String(g.of.seed, g.key)
	if _, again := g.seen[hash]; again {
		g.of.torn.Do(func() {
			slog.Warn("wds: a key comes back later in a shard, as another sample: the files of a sample must follow each other; "+
				"further keys that come back aren't told", "shard", g.shard, "key", short(g.key))
		})
	} else if len(g.seen) < maxSeen {
		g.seen[hash] = struct{}{}
	}
}

// unfit returns why the file ahead can't belong to the record r.
func (g *grouper) unfit(r *Record, h *tar.Header) error {
	size := int64(len(r.data)) + h.Size
	switch {
	case len(h.Name) > g.of.limits.Name:
		return fmt.Errorf("a name of %d bytes: must be at most %d", len(h.Name), g.of.limits.Name)
	case len(r.files) == g.of.limits.Files:
		return fmt.Errorf("more than %d files", g.of.limits.Files)
	case slices.ContainsFunc(r.files, func(f file) bool { return f.ext == g.ext }):
		return fmt.Errorf("two files %s", short(g.ext))
	case kinds[h.Typeflag] != "":
		return fmt.Errorf("its file %s is %s, which holds no data", short(g.ext), kinds[h.Typeflag])
	case h.Typeflag == tar.TypeGNUSparse || isSparse(h):
		// Its header may claim any size without any data.
		return fmt.Errorf("its file %s is sparse: pack it without holes (GNU tar: without --sparse)", short(g.ext))
	case h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeCont:
		return fmt.Errorf("its file %s is of the unknown type %q", short(g.ext), h.Typeflag)
	case h.Size > g.of.limits.Bytes-int64(len(r.data)):
		return fmt.Errorf("%d bytes up to its file %s: must be at most %d", size, short(g.ext), g.of.limits.Bytes)
	}
	return nil
}

var kinds = map[byte]string{
	tar.TypeLink: "a hard link", tar.TypeSymlink: "a symbolic link",
	tar.TypeChar: "a device", tar.TypeBlock: "a device", tar.TypeFifo: "a FIFO",
}

func isSparse(h *tar.Header) bool {
	for name := range h.PAXRecords {
		if strings.HasPrefix(name, "GNU.sparse.") {
			return true
		}
	}
	return false
}

// typeLabel is the type of an archive's label, which GNU tar writes first if asked to. The label's name
// may look like a sample's file.
const typeLabel = 'V'

// advance makes sure that ahead is a file of a sample. It returns io.EOF if there is
// none and the shard's end is proved.
func (g *grouper) advance() error {
	for g.ahead == nil {
		if g.done {
			return io.EOF
		}
		h, err := g.tar.Next()
		if err == io.EOF {
			err = g.end()
		}
		if err != nil {
			return err
		}
		g.begun = true
		if g.done || h.Typeflag == tar.TypeDir || h.Typeflag == tar.TypeXGlobalHeader || h.Typeflag == typeLabel {
			continue
		}
		switch key, ext, ok := split(h.Name); {
		case !ok || isMeta(h.Name):
		case isLeftover(h.Name):
			g.left = short(h.Name)
		default:
			g.ahead, g.key, g.ext = h, key, ext
		}
	}
	return nil
}

// maxPadding is how many zeros may follow tar's end marker. Tar pads with a few kilobytes; a file with a
// hole, or one from a full disk, has more.
const maxPadding = 16 << 20

// end checks whether the shard has really ended, and records it if so. It must check, because tar's
// reader takes the end of the data for the end of the archive, and ignores what comes after the end
// marker.
func (g *grouper) end() error {
	if g.in.over {
		if g.in.n == 0 {
			return errors.New("it is empty")
		}
		return fmt.Errorf("the end marker is missing: %w", io.ErrUnexpectedEOF)
	}
	var buf [4096]byte
	for padding := 0; ; {
		n, err := g.in.Read(buf[:])
		if len(bytes.Trim(buf[:n], "\x00")) > 0 {
			return errors.New("something follows the end marker: it may be of another tar file, or there is a hole before it")
		}
		if padding += n; padding > maxPadding {
			return fmt.Errorf("more than %d zeros follow the end marker", maxPadding)
		}
		if err == io.EOF && g.left != "" && len(g.seen) == 0 {
			return fmt.Errorf("no sample is in it: its files, such as %s, have the names of leftovers, or lie in a folder that has", g.left)
		}
		if err == io.EOF {
			g.done = true
			return nil
		}
		if err != nil {
			return err
		}
	}
}

// noEnd returns err, but never an io.EOF, which the loader would take for the end of the shard.
func noEnd(err error) error {
	if errors.Is(err, io.EOF) {
		return fmt.Errorf("%w: %v", io.ErrUnexpectedEOF, err)
	}
	return err
}

// short returns a name for a message: cut if it is very long.
func short(name string) string {
	const most = 200
	if len(name) > most {
		return strings.ToValidUTF8(name[:most], "") + "…"
	}
	return name
}

// isMeta reports whether WebDataset's readers skip a file because it describes the shard.
func isMeta(name string) bool {
	top, _, _ := strings.Cut(name, "/")
	return len(top) > 3 && strings.HasPrefix(top, "__") && strings.HasSuffix(top, "__")
}

// isLeftover reports whether an operating system or a server left a file, or its folder, behind.
func isLeftover(name string) bool {
	for element := range strings.SplitSeq(name, "/") {
		if element != "." && element != ".." && files.IsLeftover(element) {
			return true
		}
	}
	return false
}

// split splits a name into key and extension, and reports whether it has both.
func split(name string) (key, ext string, ok bool) {
	base := strings.LastIndexByte(name, '/') + 1
	dot := strings.IndexByte(name[base:], '.')
	if dot < 1 || base+dot+1 == len(name) {
		return "", "", false
	}
	return name[:base+dot], strings.ToLower(name[base+dot+1:]), true
}

// appendFrom appends n bytes of r. It allocates memory as they come, and doesn't trust the size in a
// header.
func appendFrom(data []byte, r io.Reader, n int) ([]byte, error) {
	for n > 0 {
		part := min(n, max(cap(data)-len(data), 1<<20))
		data = slices.Grow(data, part)
		got, err := io.ReadFull(r, data[len(data):len(data)+part])
		if err != nil {
			return data, err
		}
		data = data[:len(data)+got]
		n -= got
	}
	return data, nil
}
