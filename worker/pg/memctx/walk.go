package memctx

import (
	"context"
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf8"

	"pg_stat_backtrace/worker/pg/layout"
)

// Bounds of strings, in bytes.
const (
	maxName  = 256
	maxIdent = 1024 // MEMORY_CONTEXT_IDENT_DISPLAY_SIZE (mcxtfuncs.c), with the end of the string
)

// looks is how many steps (see tick) are made between two checks whether ctx has ended.
const looks = 1024

// walk is one reading of a tree.
type walk struct {
	server  *Server
	layout  *offsets
	options Options
	ctx     context.Context //nolint:containedctx // of one call
	pages   pages
	buffer  [128]byte // for one header or block
	tree    Tree
	at      []uint64 // the addresses of the contexts
	steps   int
}

// tick counts a step: a context, block or chunk. It returns false if ctx has ended.
func (w *walk) tick() bool {
	w.steps++
	return w.steps%looks != 0 || w.ctx.Err() == nil
}

// broken counts a contradiction; see Tree.Broken.
func (w *walk) broken() { w.tree.Broken++ }

// read reads the tree to whose root the variable TopMemoryContext points. It reads all contexts first, then their
// figures, which take more reads: if a bound is reached, figures are missing, not contexts.
func (w *walk) read(variable uint64) (*Tree, error) {
	top, ok := w.pages.word(variable)
	if !ok || top == 0 {
		return nil, ErrNoContexts
	}
	if !w.contexts(top) {
		return nil, fmt.Errorf("%w: what TopMemoryContext points at is none", ErrNoContexts)
	}
	for i := range w.at {
		if !w.tick() {
			return nil, w.ctx.Err()
		}
		w.blocks(i)
	}
	for i := range w.at {
		if !w.tick() {
			return nil, w.ctx.Err()
		}
		w.freeChunks(i)
	}
	if err := w.ctx.Err(); err != nil {
		return nil, err
	}
	w.tree.NoChecks = w.server.checked
	w.tree.LeftOut = w.tree.LeftOut || w.pages.full
	w.tree.Changed = w.pages.changed()
	w.tree.Consistent = w.tree.Broken == 0 && w.tree.Changed == 0
	t := w.tree
	return &t, nil
}

// header is the part of a context that all kinds have.
type header struct {
	tag                            uint32
	allocated                      uint64
	parent, firstChild, prev, next uint64
	name, ident                    uint64
}

func (w *walk) header(addr uint64) (header, bool) {
	c := &w.layout.MemoryContextData
	b := w.buffer[:c.Size.Int()]
	if addr == 0 || addr%8 != 0 || !w.pages.read(addr, b) {
		return header{}, false
	}
	word := func(at layout.Offset) uint64 { return binary.NativeEndian.Uint64(b[at.Int():]) }
	h := header{
		tag: binary.NativeEndian.Uint32(b), allocated: word(c.MemAllocated), parent: word(c.Parent),
		firstChild: word(c.Firstchild), prev: word(c.Prevchild), next: word(c.Nextchild),
		name: word(c.Name), ident: word(c.Ident),
	}
	return h, w.kind(h.tag) != ""
}

// kindAllocSet is the usual kind of context.
const kindAllocSet = "AllocSet"

// kind returns the kind of a context by its node tag, or "" if no context has this tag.
func (w *walk) kind(tag uint32) string {
	switch l := &w.layout.Tags; int(tag) {
	case l.AllocSetContext.Int():
		return kindAllocSet
	case l.GenerationContext.Int():
		return "Generation"
	case l.SlabContext.Int():
		return "Slab"
	case l.BumpContext.Int():
		return "Bump"
	}
	return ""
}

// contexts reads all contexts, level by level, as pg_backend_memory_contexts numbers them in 18. It returns false if there is
// no context at the address top.
func (w *walk) contexts(top uint64) bool {
	h, ok := w.header(top)
	if !ok || h.parent != 0 {
		return false
	}
	seen := map[uint64]bool{top: true}
	w.add(top, &h, -1)
	for i := 0; i < len(w.at); i++ { //nolint:intrange // the loop appends to w.at
		switch w.children(i, seen) {
		case bounded:
			w.tree.LeftOut = true
			return true
		case lost:
			w.tree.Missing++
			w.broken()
		case complete:
		}
	}
	return true
}

// found is the result of a reading of a context's children.
type found int

const (
	complete found = iota
	lost           // some children cannot be found, because a link contradicts another one
	bounded        // a bound of the options was reached
)

// childTries bounds how often the children of a context are read until their links agree. A running query creates and
// deletes contexts all the time, but the list of one context's children is read much faster than the tree.
const childTries = 10

// children adds the children of a context. If their links change meanwhile, it reads them again, at most childTries times.
func (w *walk) children(i int, seen map[uint64]bool) (result found) {
	before := len(w.at)
	for try := range childTries {
		if try > 0 {
			w.pages.forget(w.at[i])
			for _, addr := range w.at[before:] {
				w.pages.forget(addr)
				delete(seen, addr)
			}
			w.at, w.tree.Contexts = w.at[:before], w.tree.Contexts[:before]
		}
		if result = w.childList(i, seen); result != lost {
			break
		}
	}
	return result
}

// childList follows the links of the children of a context once.
func (w *walk) childList(i int, seen map[uint64]bool) found {
	parent, ok := w.header(w.at[i])
	if !ok {
		return lost
	}
	prev := uint64(0)
	for child := parent.firstChild; child != 0; {
		if len(w.at) >= w.options.MaxContexts {
			return bounded
		}
		h, ok := w.header(child)
		if w.pages.full || !w.tick() {
			return bounded
		}
		if !ok || h.parent != w.at[i] || h.prev != prev || seen[child] {
			w.pages.forget(child)
			return lost
		}
		seen[child] = true
		w.add(child, &h, i)
		prev, child = child, h.next
	}
	return complete
}

// add appends a context, whose figures are not known yet.
func (w *walk) add(addr uint64, h *header, parent int) {
	c := Context{
		Type: w.kind(h.tag), Parent: parent, Total: Unknown, Blocks: Unknown, Free: Unknown, FreeChunks: Unknown,
	}
	if parent >= 0 {
		c.Depth = w.tree.Contexts[parent].Depth + 1
	}
	c.Name, c.Ident = w.label(h)
	w.at = append(w.at, addr)
	w.tree.Contexts = append(w.tree.Contexts, c)
}

// label reads the name and the identifier. As in pg_backend_memory_contexts, a hash table has its identifier as its name.
func (w *walk) label(h *header) (name, ident string) {
	raw, _, ok := w.pages.text(h.name, maxName)
	if !ok && !w.pages.full {
		w.broken()
	}
	name = printable(raw)
	if h.ident == 0 {
		return name, ""
	}
	raw, whole, ok := w.pages.text(h.ident, maxIdent)
	if !ok && !w.pages.full {
		w.broken()
	}
	if !whole {
		raw = clip(raw, maxIdent-1)
	}
	if ident = printable(raw); name == "dynahash" {
		return ident, ""
	}
	return name, ident
}

// clip cuts a text to a length, between two characters of UTF-8.
func clip(raw []byte, limit int) []byte {
	if len(raw) <= limit {
		return raw
	}
	for end := limit; end > limit-utf8.UTFMax && end > 0; end-- {
		if utf8.RuneStart(raw[end]) {
			return raw[:end]
		}
	}
	return raw[:limit]
}

// printable escapes the bytes that are not valid UTF-8: the process may have another encoding.
func printable(raw []byte) string {
	if utf8.Valid(raw) {
		return string(raw)
	}
	var s strings.Builder
	for len(raw) > 0 {
		r, size := utf8.DecodeRune(raw)
		if r == utf8.RuneError && size == 1 {
			fmt.Fprintf(&s, `\x%02x`, raw[0])
		} else {
			s.Write(raw[:size])
		}
		raw = raw[size:]
	}
	return s.String()
}
