package selfnames

import (
	"embed"
	"encoding/binary"
	"path"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// builtin has the tables that tools/selfnamesgen made, one for each major version.
//
//go:embed tables/*.table
var builtin embed.FS

// Tables gives access to the tables of functions, one for each major version.
type Tables struct {
	// Read returns the packed table of a major version, nil if there is none.
	Read func(major int) []byte
}

// Builtin returns the tables that are built into the executable file.
func Builtin() *Tables {
	return &Tables{Read: func(major int) []byte {
		p, err := builtin.ReadFile("tables/" + strconv.Itoa(major) + ".table")
		if err != nil {
			return nil
		}
		return p
	}}
}

// banner matches the version text in a server. It matches only versions of PostgreSQL itself and of Debian's and
// Ubuntu's packages, which have the same functions. A fork may have other functions.
//
// The pattern is compiled at its first use, because most commands do not use it.
var banner = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`postgres \(PostgreSQL\) ([0-9]+)(?:\.[0-9]+|beta[0-9]+|rc[0-9]+)` +
		`(?: \((?:Debian|Ubuntu) [^ ()\n]+\))?\n?\x00`)
})

// The parts of PostgreSQL for which tables have functions: prefixes of the paths of their files.
const (
	serverFiles  = "" // all files except for the files of languages
	plpgsqlFiles = "pl/plpgsql/"
	languages    = "pl/"
)

// version returns the major version of the image, and the part of PostgreSQL to which the image belongs. The version is
// 0 if it is unknown, or if the image is of a fork.
func (e *evidence) version() (major int, files string) {
	switch {
	case e.exports["errfinish"] && e.exports["PostmasterPid"]:
		for i := range e.pieces {
			if m := banner().FindSubmatch(e.around(i)); m != nil {
				major, _ = strconv.Atoi(string(m[1]))
				return major, serverFiles
			}
		}
	case e.exports["plpgsql_call_handler"]:
		return e.magic(), plpgsqlFiles
	}
	return 0, ""
}

// around returns the bytes of piece i that may contain the banner, the server's version text; nil if no bytes can.
func (e *evidence) around(i int) []byte {
	const begins, longest = "postgres (PostgreSQL) ", 128
	p := e.pieces[i].data
	if e.pieces[i].code && len(e.pieces) > 1 {
		return nil
	}
	at := strings.Index(bytesString(p), begins)
	if at < 0 {
		return nil
	}
	return p[at:min(at+longest, len(p))]
}

// magic returns the major version for which a loadable module was built; 0: unknown. Pg_magic_func returns the address
// of a structure. The second number in the structure is the major version times 100.
func (e *evidence) magic() int {
	const word, digits = 4, 100
	for _, r := range e.refs {
		if e.fns[r.fn].name != "Pg_magic_func" {
			continue
		}
		// Since version 18, the structure contains pointers, which the dynamic linker writes. So it is in a writable
		// segment, which pieces does not have.
		if p, err := e.image.Bytes(r.to, 2*word); err == nil {
			return int(binary.LittleEndian.Uint32(p[word:]) / digits)
		}
	}
	return 0
}

// sourceOf is a table while it is compared with an image. The image belongs to the part of PostgreSQL in the field
// module (see serverFiles).
type sourceOf struct {
	*Source
	module string
	// byBase has the indexes of the part's files by their base names. byName has the file of each exported function;
	// -1: several files have the name.
	byBase map[string][]int
	byName map[string]int
	files  map[string]int   // the results of method file
	index  []map[string]int // see method function
	reach  [][]functionSet  // see method reachable
	usable []bool           // by file: the table lists all its functions, and the image does not contradict it
}

// typicalExports is approximately how many functions of PostgreSQL are not static.
const typicalExports = 1 << 14

func newSourceOf(s *Source, module string) *sourceOf {
	o := &sourceOf{
		Source: s, module: module, byBase: make(map[string][]int), byName: make(map[string]int, typicalExports),
		files: make(map[string]int),
		index: make([]map[string]int, len(s.Files)), reach: make([][]functionSet, len(s.Files)),
		usable: make([]bool, len(s.Files)),
	}
	for i := range s.Files {
		f := &s.Files[i]
		if module == serverFiles && strings.HasPrefix(f.Path, languages) || !strings.HasPrefix(f.Path, module) {
			continue
		}
		o.usable[i] = !f.Generated && !f.Mixed
		o.byBase[path.Base(f.Path)] = append(o.byBase[path.Base(f.Path)], i)
		for j := range f.Functions {
			fn := &f.Functions[j]
			if fn.Static || fn.Name == "" {
				continue
			}
			if _, again := o.byName[fn.Name]; again {
				o.byName[fn.Name] = -1
			} else {
				o.byName[fn.Name] = i
			}
		}
	}
	return o
}

// function returns the index of a file's function in the table. The result is false if the table does not have the
// function.
func (o *sourceOf) function(file int, name string) (int, bool) {
	if o.index[file] == nil {
		fns := o.Files[file].Functions
		o.index[file] = make(map[string]int, len(fns))
		for i := range fns {
			o.index[file][fns[i].Name] = i
		}
	}
	i, known := o.index[file][name]
	return i, known
}

// file returns the index of the file whose name a function reports; -1 if the file is not in the table, or if several
// files have this name.
func (o *sourceOf) file(reported string) int {
	if reported == "" {
		return -1
	}
	at, known := o.files[reported]
	if !known {
		at = o.find(reported)
		o.files[reported] = at
	}
	return at
}

func (o *sourceOf) find(reported string) int {
	same := o.byBase[path.Base(reported)]
	clean := path.Clean(reported)
	for _, top := range []string{"backend/", "common/", "port/", "timezone/", languages} {
		i := strings.Index(clean, "src/"+top)
		if i < 0 || i > 0 && clean[i-1] != '/' {
			continue
		}
		for _, f := range same {
			if o.Files[f].Path == clean[i+len("src/"):] {
				return f
			}
		}
		return -1
	}
	if len(same) != 1 {
		return -1
	}
	return same[0]
}

// functionSet is a set of functions of a file, bit n for function n.
type functionSet []uint64

func (b functionSet) has(i int) bool { return b[i>>6]>>(i&63)&1 != 0 }
func (b functionSet) add(i int)      { b[i>>6] |= 1 << (i & 63) }

// reachable returns, for each function of a file, the set of functions whose code it may contain after inlining: all
// functions that it mentions, directly or through other functions.
func (o *sourceOf) reachable(file int) []functionSet {
	if o.reach[file] != nil {
		return o.reach[file]
	}
	fns := o.Files[file].Functions
	all := make([]functionSet, len(fns))
	for i := range fns {
		seen := make(functionSet, len(fns)>>6+1)
		todo := []int{i}
		for len(todo) > 0 {
			at := todo[len(todo)-1]
			todo = todo[:len(todo)-1]
			for _, next := range fns[at].Mentions {
				if !seen.has(next) {
					seen.add(next)
					todo = append(todo, next)
				}
			}
		}
		all[i] = seen
	}
	o.reach[file] = all
	return all
}
