package levels

import (
	"encoding/binary"
	"slices"
	"sync"

	"pg_stat_backtrace/worker/naming/backtrace"
)

// Modules of languages other than PL/pgSQL; server means the server's own program.
const (
	server        = ""
	plperlModule  = "plperl.so"
	pythonModule  = "plpython3.so"
	maxCallback   = 2048 // bytes of code to examine
	maxConstants  = 128
	longestFormat = 96
)

// callback describes a function of PostgreSQL that adds a line of CONTEXT to an error message.
type callback struct {
	name, module string
	// formats are strings in the function's code. Together they are in no other function of the file, so they identify
	// the function if no symbol names it.
	formats []string
	read    func(r *reader, arg uint64) (backtrace.Level, bool)
}

//nolint:gochecknoglobals // a table
var callbacks = []callback{
	{"_SPI_error_callback", server, []string{`SQL statement "%s"`, `PL/pgSQL assignment "%s"`}, (*reader).spi},
	{
		"sql_exec_error_callback", server,
		[]string{`SQL function "%s" statement %d`, `SQL function "%s" during startup`}, (*reader).sqlFunction,
	},
	{"sql_inline_error_callback", server, []string{`SQL function "%s" during inlining`}, (*reader).sqlInline},
	{"CopyFromErrorCallback", server, nil, (*reader).copyFrom}, // needs no formats: it is exported, so it always has a symbol
	{
		"vacuum_error_callback", server, []string{
			`while scanning block %u of relation "%s.%s"`, `while truncating relation "%s.%s" to %u blocks`,
		}, (*reader).vacuum,
	},
	{ // after vacuum_error_callback, whose code has these strings too
		"parallel_vacuum_error_callback", server, []string{
			`while vacuuming index "%s" of relation "%s.%s"`, `while cleaning up index "%s" of relation "%s.%s"`,
		}, (*reader).parallelVacuum,
	},
	{
		"XactLockTableWaitErrorCb", server, []string{
			`while updating tuple (%u,%u) in relation "%s"`, `while locking tuple (%u,%u) in relation "%s"`,
		}, (*reader).tupleLock,
	},
	{execCallback, plpgsqlModule, nil, (*reader).plpgsql}, // without a symbol, reports identifies it
	{"plpgsql_execsql_error_callback", plpgsqlModule, []string{`SQL statement "%s"`}, (*reader).simpleStatement},
	{"plperl_exec_callback", plperlModule, []string{`PL/Perl function "%s"`}, (*reader).perl},
	{"plperl_inline_callback", plperlModule, []string{"PL/Perl anonymous code block"}, (*reader).perlBlock},
	{
		"plpython_error_callback", pythonModule,
		[]string{`PL/Python function "%s"`, `PL/Python procedure "%s"`}, (*reader).python,
	},
	{"plpython_inline_error_callback", pythonModule, []string{"PL/Python anonymous code block"}, (*reader).pythonBlock},
}

// identify returns the callback that begins at an address. It finds the callback by its name, or else by its code: the
// strings that the code uses, or the fields that it reads. It returns nil if the function is none of the callbacks, or
// unknown.
func (r *reader) identify(addr uint64, code *Code) *callback {
	module := code.Module
	if code.Server {
		module = server
	}
	if c := byName(module, code.Function); c != nil {
		return c
	}
	if !slices.ContainsFunc(callbacks, func(c callback) bool { return c.module == module }) {
		return nil
	}
	if code.Function != "" && module == plpgsqlModule {
		return nil
	}
	return r.recognise(code, func() *callback {
		if module == plpgsqlModule && r.reports(addr, code.Size) {
			return byName(module, execCallback)
		}
		return byFormats(module, r.constants(addr, code))
	})
}

// maxVerdicts bounds the cached functions; a server has some dozens of callbacks.
const maxVerdicts = 512

// verdicts caches the results of recognise by the function's place in a file, because the code there is the same in all
// processes. nil: the function is none of the callbacks.
type verdicts struct {
	mu      sync.Mutex
	byPlace map[codePlace]*callback
}

type codePlace struct {
	image, function string
	offset          uint64
}

// recognise returns the callback that the function look finds by a function's code; nil: none. It returns the cached
// result of an earlier call if there is one. If the code could not be read, the next call tries again.
func (r *reader) recognise(code *Code, look func() *callback) *callback {
	seen, place := &r.server.seen, codePlace{code.Image, code.Function, code.Offset}
	seen.mu.Lock()
	v, known := seen.byPlace[place]
	seen.mu.Unlock()
	if known {
		return v
	}
	before := r.lacking
	r.lacking = false
	v = look()
	if code.Image != "" && !r.lacking {
		seen.mu.Lock()
		if len(seen.byPlace) >= maxVerdicts || seen.byPlace == nil {
			seen.byPlace = make(map[codePlace]*callback)
		}
		seen.byPlace[place] = v
		seen.mu.Unlock()
	}
	r.lacking = r.lacking || before
	return v
}

func byName(module, name string) *callback {
	for i := range callbacks {
		if c := &callbacks[i]; c.module == module && c.name == name {
			return c
		}
	}
	return nil
}

func byFormats(module string, used []string) *callback {
	for i := range callbacks {
		c := &callbacks[i]
		unused := func(format string) bool { return !slices.Contains(used, format) }
		if c.module == module && c.formats != nil && !slices.ContainsFunc(c.formats, unused) {
			return c
		}
	}
	return nil
}

// constants returns the strings of the function's file whose addresses its code takes. On x86-64, code takes them by
// lea with an address relative to the next instruction. A false match leads to some other string, which is harmless.
func (r *reader) constants(addr uint64, code *Code) []string {
	const lea = 7 // bytes
	if code.Size < lea || code.Size > maxCallback {
		return nil
	}
	text := make([]byte, code.Size)
	if r.live(addr, text) < code.Size {
		return nil
	}
	var found []string
	for i := 0; i+lea <= len(text) && len(found) < maxConstants; i++ {
		if text[i]&^4 != 0x48 || text[i+1] != 0x8d || text[i+2]&0xc7 != 0x05 {
			continue
		}
		at := addr + uint64(i+lea) + uint64(int64(int32(binary.LittleEndian.Uint32(text[i+3:]))))
		if at >= addr && at < addr+uint64(code.Size) {
			continue
		}
		if r.in.Code(at).Module != code.Module {
			continue
		}
		if s, cut := r.text(r.live, at, longestFormat); s != "" && !cut {
			found = append(found, s)
		}
	}
	return found
}
