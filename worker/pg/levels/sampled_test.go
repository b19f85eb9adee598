package levels

import (
	"slices"
	"testing"
)

// sampledLines reads the fake process as a sampled one.
func (f *fake) sampledLines(change func(*Input)) ([]string, string) {
	in := f.input()
	in.Sampled = true
	if change != nil {
		change(in)
	}
	result := f.server().Process(bias).Read(in)
	var out []string
	for _, l := range result.Levels {
		out = append(out, l.Level.Text)
	}
	return out, result.Missing
}

// TestSampled checks which levels of a sampled process are returned. If in doubt, none are.
func TestSampled(t *testing.T) {
	const inner, outer = "PL/pgSQL function inner() line 7 at RETURN", "PL/pgSQL function outer() line 3 at PERFORM"
	block := "PL/pgSQL function inline_code_block line 9 at ASSERT"
	functions := func(f *fake) { f.plpgsql("inner()", 1, 11, 7); f.plpgsql("outer()", 2, 23, 3) }
	named := func(function string) func(*Input) {
		return func(in *Input) {
			for i := range in.Frames {
				in.Frames[i].Function = function
			}
		}
	}
	for _, tt := range []struct {
		name    string
		make    func(f *fake)
		change  func(*Input)
		want    []string
		missing string
	}{
		{"two functions", functions, nil, []string{inner, outer}, ""},
		{"the callee has a name", functions, named("exec_stmts"), []string{inner, outer}, ""},
		{"the function prepares its node", functions, named("plpgsql_estate_setup.part.0"), nil, entering},
		{"the function makes its table of casts", functions, named("hash_create"), nil, entering},
		{"the function is the innermost frame", functions, func(in *Input) { in.Frames = in.Frames[3:] }, nil, entering},
		{"the callee has no name and is the innermost", functions, func(in *Input) { in.Frames = in.Frames[2:] }, nil, entering},
		{"no node", func(*fake) {}, nil, nil, ""},
		{"no function of PL/pgSQL", functions, func(in *Input) {
			for i := range in.Frames {
				in.Frames[i].Module = "postgres"
			}
		}, nil, ""},
		{"a pushed node", func(f *fake) {
			functions(f)
			f.put64(stackLow+frameSize, stackLow+3*frameSize+frameSize/2)
			f.put64(stackLow+frameSize+8, spiAt)
		}, nil, nil, entering},
		{"a pushed node on an empty list", func(f *fake) { f.put64(stackLow+frameSize+8, plpgsqlAt) }, nil, nil, entering},
		{"a saved head", func(f *fake) {
			functions(f)
			f.put64(stackLow+frameSize, stackLow+3*frameSize+frameSize/2)
			f.put64(stackLow+frameSize+8, 4)
		}, nil, []string{inner, outer}, ""},
		{"the list leaves the copy", functions, func(in *Input) { in.Frames = in.Frames[:4] }, nil, cut},
		{"the list is not copied", functions, func(in *Input) {
			in.Frozen = func(uint64, []byte) int { return 0 }
		}, nil, Moved},
		{"the argument lies in another frame", func(f *fake) {
			functions(f)
			f.put64(stackLow+3*frameSize+frameSize/2+16, stackLow+5*frameSize)
		}, nil, nil, entering},
		{"an outermost block", func(f *fake) { f.plpgsql("inner()", 1, 11, 7); f.plpgsql(inlineBlock, 0, 15, 9) }, nil,
			[]string{inner, block}, ""},
		{"a block inside a function", func(f *fake) { f.plpgsql(inlineBlock, 0, 15, 9); f.plpgsql("outer()", 2, 23, 3) }, nil,
			nil, nested},
		{"a block inside an SQL function", func(f *fake) { f.plpgsql(inlineBlock, 0, 15, 9); f.node(sqlAt, 0) }, nil, nil, nested},
	} {
		t.Run(tt.name, func(t *testing.T) {
			each(t, func(t *testing.T, f *fake) {
				f.stack += 3 * frameSize
				tt.make(f)
				if got, missing := f.sampledLines(tt.change); !slices.Equal(got, tt.want) || missing != tt.missing {
					t.Errorf("%q, missing %q, want %q, %q", got, missing, tt.want, tt.missing)
				}
			})
		})
	}
}
