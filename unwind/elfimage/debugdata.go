package elfimage

import (
	"bytes"
	"errors"
	"fmt"

	"pg_stat_backtrace/unwind/budget"
)

// maxDebugData bounds the decompressed .gnu_debugdata. It contains a symbol table. The symbol table of a browser has
// some ten megabytes. budget.Expansion sets a further bound, by the size of the section.
const maxDebugData = 64 << 20

// debugData reads .gnu_debugdata ("MiniDebugInfo" in the GDB manual): an ELF file with a symbol table, compressed by
// xz, inside of the image.
func (s *search) debugData() (FoundFile, bool) {
	p, _, err := s.image.Section(".gnu_debugdata")
	if errors.Is(err, ErrNoSection) {
		return FoundFile{}, false
	}
	if err == nil {
		p, err = unxz(p, int(min(maxDebugData, budget.Expansion.Of(int64(len(p))))))
	}
	if err != nil {
		return s.skip(s.path, fmt.Errorf(".gnu_debugdata: %w", err))
	}
	m, err := Open(bytes.NewReader(p), s.image.Name()+" .gnu_debugdata")
	if err == nil {
		err = s.inside(m)
	}
	if err != nil {
		return s.skip(s.path, err)
	}
	return FoundFile{Image: m, Path: s.path, How: ByDebugData, Skipped: s.skipped}, true
}

// inside checks that debug information found in .gnu_debugdata is for the image. It accepts debug information without a
// build-id.
func (s *search) inside(m *Image) error {
	if m.BuildID() != "" && m.BuildID() != s.image.BuildID() || m.Machine() != s.image.Machine() {
		return fmt.Errorf("%w: .gnu_debugdata for %v, build-id %q, not %q",
			ErrMismatch, m.Machine(), m.BuildID(), s.image.BuildID())
	}
	return nil
}
