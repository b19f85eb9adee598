package dwarf

import "fmt"

const (
	// maxChain bounds the entries that are read, one referring to the next, to find a name.
	maxChain = 16
	// entryStep is how many bytes are read at first for one entry, maxEntry how many at most.
	entryStep = 256
	maxEntry  = 64 << 10
)

// functionName returns the name of the function whose entry is at off. It follows the entry's references to other
// entries. The result is the first linkage name, or else the first name.
func (d *Data) functionName(u *unit, off uint64) (string, error) {
	name := ""
	for range maxChain {
		e, err := d.entryAt(u, off)
		if err != nil {
			return name, err
		}
		if e.linkage.ok() {
			if s, err := d.text(u, e.linkage); err == nil && s != "" {
				return s, nil
			}
		}
		if name == "" && e.name.ok() {
			if name, err = d.text(u, e.name); err != nil {
				return "", err
			}
		}
		ref := e.origin
		if !ref.ok() {
			ref = e.spec
		}
		if !ref.ok() {
			return name, nil
		}
		next, at, err := d.reference(u, ref)
		if err != nil {
			return name, err
		}
		if next == d && at >= u.first && at < u.end {
			off = at
			continue
		}
		if d, off, u = next, at, next.unitWith(at); u == nil {
			return name, fmt.Errorf("%s: %w: no unit has an entry at %#x", d.name, ErrMalformed, at)
		}
	}
	return name, fmt.Errorf("%s: %w: entry at %#x refers to itself", d.name, ErrMalformed, off)
}

// entryAt reads the entry at an offset of .debug_info, which must be in unit u.
func (d *Data) entryAt(u *unit, off uint64) (entry, error) {
	for n := uint64(entryStep); ; n *= 8 {
		w, err := d.walk(u, off, min(off+n, u.end))
		if err != nil {
			return entry{}, err
		}
		if w.next() {
			return w.e, w.charge(0)
		}
		if off+n >= u.end || n >= maxEntry {
			return entry{}, fmt.Errorf("%s: %w: entry at %#x", d.name, ErrMalformed, off)
		}
	}
}
