// Package memctx reads the tree of memory contexts of a PostgreSQL server process from its memory, while the process
// runs or is stuck, without its help. The rows are those that the view pg_backend_memory_contexts would have.
//
// The process is not stopped, so it may change the tree meanwhile. Therefore the package reads everything twice. A tree
// is consistent if nothing changed between the two readings, and if each link in the tree leads back to its origin. The
// package reads an inconsistent tree again. After the last attempt, it returns the best tree, with Consistent false.
// The layouts are those of PostgreSQL 14 to 19 on 64-bit machines.
//
// The package must not know how memory is read, how a tree is printed, or ELF files.
package memctx

import (
	"cmp"
	"context"
	"errors"
	"fmt"
)

// Memory copies memory of the process from addr into p and returns how many bytes it got.
type Memory func(addr uint64, p []byte) int

// Errors of Read.
var (
	// ErrNotServer means that a program is not a PostgreSQL server of a version that this package knows.
	ErrNotServer = errors.New("not a known PostgreSQL server")
	// ErrNoContexts means that the process has no memory contexts yet, or that its memory cannot be read.
	ErrNoContexts = errors.New("no memory contexts")
)

// Server has the facts about a server's program that a reader needs.
type Server struct {
	// Major is the major version.
	Major int

	layout  *offsets
	top     uint64 // TopMemoryContext, a link-time address
	checked bool   // built with MEMORY_CONTEXT_CHECKING, which changes the layouts
}

// Variables returns the symbols that NewServer needs.
func Variables() []string { return []string{"TopMemoryContext", "MemoryContextCheck"} }

// NewServer returns the facts about a program, by its major version and its symbols. symbol returns the link-time
// address of a symbol; 0: there is none. The error wraps ErrNotServer.
func NewServer(major int, symbol func(name string) uint64) (*Server, error) {
	known, ok := offsetsOf(major)
	s := &Server{Major: major, layout: known, top: symbol("TopMemoryContext")}
	s.checked = symbol("MemoryContextCheck") != 0
	switch {
	case !ok:
		return nil, fmt.Errorf("%w: version %d", ErrNotServer, major)
	case s.top == 0:
		return nil, fmt.Errorf("%w: it has no TopMemoryContext", ErrNotServer)
	}
	return s, nil
}

// Options bound the work; the zero value is the default.
type Options struct {
	// MaxContexts bounds the contexts of a tree; 0 means DefaultMaxContexts.
	MaxContexts int
	// MaxPages bounds the pages of 4 KiB that are kept while a tree is read; 0 means DefaultMaxPages.
	MaxPages int
	// Attempts bounds how often a tree is read until it is consistent; 0 means DefaultAttempts.
	Attempts int
}

// Defaults of Options.
const (
	DefaultMaxContexts = 1 << 18
	DefaultMaxPages    = 1 << 16
	DefaultAttempts    = 20
)

// Unknown is a figure that could not be read.
const Unknown = -1

// Context is a memory context.
type Context struct {
	// Name and Ident are as in pg_backend_memory_contexts: the context of a hash table has the table's name. Ident has at
	// most 1,023 bytes.
	Name, Ident string
	// Type is AllocSet, Generation, Slab or Bump.
	Type string
	// Parent is the index of the parent in Tree.Contexts, -1 for the first context.
	Parent int
	// Depth is 0 for the first context.
	Depth int
	// Deeper counts the contexts below this one whose figures Bounded has added to those of this context.
	Deeper int
	// Total and Blocks are the bytes and blocks that the context has from malloc. Free and FreeChunks are the bytes and
	// chunks in these blocks that are free. A figure that could not be read is Unknown.
	Total, Blocks, Free, FreeChunks int64
}

// Used returns the bytes that are in use; Unknown if Total or Free is unknown.
func (c *Context) Used() int64 {
	if c.Total == Unknown || c.Free == Unknown {
		return Unknown
	}
	return c.Total - c.Free
}

// Tree is the memory contexts of a process.
type Tree struct {
	// Contexts are in the order of the tree's levels: the first is TopMemoryContext, parents come before children.
	Contexts []Context
	// Consistent means that nothing of the tree changed while it was read, and that no links or figures contradict each
	// other.
	Consistent bool
	// Attempts is how often the tree was read.
	Attempts int
	// Broken counts links without a matching link back, and figures that contradict each other. Changed counts the pages
	// that changed between the two readings.
	Broken, Changed int
	// Missing counts the contexts whose children were not all found, because their links changed during the reading. Such
	// children, and all below them, are not in Contexts.
	Missing int
	// LeftOut means that a bound of the options ended the reading: there are more contexts, or figures are Unknown.
	LeftOut bool
	// NoChecks means that the server was built with assertions: free space is Unknown.
	NoChecks bool
}

// better reports whether t has fewer missing contexts than the tree in the parameter than. If both miss as many, better
// compares the number of contradictions and changes.
func (t *Tree) better(than *Tree) bool {
	return cmp.Or(cmp.Compare(t.Missing, than.Missing), cmp.Compare(t.Broken+t.Changed, than.Broken+than.Changed)) < 0
}

// MaxLevels bounds the levels of a tree that Bounded returns. A tree of PostgreSQL has some ten levels, and one more
// for each open savepoint.
const MaxLevels = 200

// Bounded returns the tree with at most MaxLevels levels. The figures of each deeper context are added to those of its
// ancestor on the last of these levels, so the sums over the tree stay the same. A figure becomes Unknown if an unknown
// figure is added to it.
func (t *Tree) Bounded() *Tree {
	b := *t
	n := 0
	for n < len(t.Contexts) && t.Contexts[n].Depth < MaxLevels { // deeper contexts come last
		n++
	}
	b.Contexts = append(make([]Context, 0, n), t.Contexts[:n]...)
	ancestors := make([]int, len(t.Contexts)-n) // of each deeper context
	for i := range ancestors {
		c := &t.Contexts[n+i]
		ancestor := c.Parent
		if ancestor >= n {
			ancestor = ancestors[ancestor-n]
		}
		ancestors[i] = ancestor
		b.Contexts[ancestor].take(c)
	}
	return &b
}

// take adds the figures of the context deeper to those of c, its ancestor.
func (c *Context) take(deeper *Context) {
	for _, sum := range []struct {
		to   *int64
		part int64
	}{
		{&c.Total, deeper.Total}, {&c.Blocks, deeper.Blocks}, {&c.Free, deeper.Free}, {&c.FreeChunks, deeper.FreeChunks},
	} {
		if *sum.to == Unknown || sum.part == Unknown {
			*sum.to = Unknown
			continue
		}
		*sum.to += sum.part
	}
	c.Deeper++
}

// Deeper counts the contexts of a bounded tree that are part of an ancestor's figures.
func (t *Tree) Deeper() (n int) {
	for i := range t.Contexts {
		n += t.Contexts[i].Deeper
	}
	return n
}

// Path returns the numbers of a context's ancestors and its own number, as pg_backend_memory_contexts does from 18 on.
// TopMemoryContext has the number 1 and comes first.
func (t *Tree) Path(i int) []int {
	var path []int
	for ; i >= 0; i = t.Contexts[i].Parent {
		path = append([]int{i + 1}, path...)
	}
	return path
}

// Read reads the tree of a process. bias is the load bias of the server's program in the process. The error is
// ErrNoContexts, or the error of ctx. If Read has read a tree before ctx ends, it returns the best tree and no error.
func (s *Server) Read(ctx context.Context, memory Memory, bias uint64, o Options) (*Tree, error) {
	if o.MaxContexts <= 0 {
		o.MaxContexts = DefaultMaxContexts
	}
	if o.MaxPages <= 0 {
		o.MaxPages = DefaultMaxPages
	}
	if o.Attempts <= 0 {
		o.Attempts = DefaultAttempts
	}
	var best *Tree
	for attempt := 1; attempt <= o.Attempts; attempt++ {
		w := walk{
			server: s, layout: s.layout, options: o, ctx: ctx,
			pages: pages{memory: memory, limit: o.MaxPages, byAddr: make(map[uint64]*page)},
		}
		t, err := w.read(bias + s.top)
		if ctx.Err() != nil && best != nil {
			break
		}
		if err != nil {
			if best != nil {
				break // the process has ended since the last attempt
			}
			return nil, err
		}
		t.Attempts = attempt
		if best == nil || t.Consistent || t.better(best) {
			best = t
		}
		best.Attempts = attempt
		if t.Consistent {
			break
		}
	}
	return best, nil
}
