package main

import (
	"os"
	"slices"

	"pg_stat_backtrace/unwind/selfnames"
)

// confirm weakens a source's table where the tables of other major versions differ. The source may be an older minor
// release than the servers. A later correction is in the newest release of the versions around it, too. So a function
// reports, or has its address taken, only if another version has it and all of these agree. It may mention all
// functions that it mentions in any version, and functions that only others have may be there.
func confirm(s *selfnames.Source, files []string) error {
	var others []*selfnames.Source
	for _, file := range files {
		packed, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		other, err := selfnames.Unpack(packed)
		if err != nil {
			return err
		}
		others = append(others, other)
	}
	for i := range s.Files {
		f := &s.Files[i]
		own := len(f.Functions)
		confirmed := make(set)
		for _, other := range others {
			at := slices.IndexFunc(other.Files, func(o selfnames.SourceFile) bool { return o.Path == f.Path })
			if at >= 0 {
				merge(f, &other.Files[at], confirmed)
			}
		}
		for j := range f.Functions[:own] {
			if fn := &f.Functions[j]; !confirmed[fn.Name] {
				fn.Reports, fn.Taken = false, false
			}
		}
	}
	return nil
}

// merge adds to a file the differences of the same file of another version.
func merge(f, other *selfnames.SourceFile, confirmed set) {
	index := make(map[string]int, len(f.Functions))
	for i := range f.Functions {
		index[f.Functions[i].Name] = i
	}
	f.Generated, f.Mixed = f.Generated || other.Generated, f.Mixed || other.Mixed
	at := make([]int, len(other.Functions))
	for i := range other.Functions {
		theirs := &other.Functions[i]
		place, known := index[theirs.Name]
		if !known {
			place = len(f.Functions)
			index[theirs.Name] = place
			f.Functions = append(f.Functions, selfnames.SourceFunction{
				Name: theirs.Name, Static: theirs.Static, MayReport: theirs.MayReport,
			})
		}
		at[i] = place
		fn := &f.Functions[place]
		confirmed[fn.Name] = true
		fn.Reports, fn.Taken = fn.Reports && theirs.Reports, fn.Taken && theirs.Taken
		fn.MayReport = fn.MayReport || theirs.MayReport
	}
	for i := range other.Functions {
		fn := &f.Functions[at[i]]
		for _, m := range other.Functions[i].Mentions {
			fn.Mentions = append(fn.Mentions, at[m])
		}
		for _, m := range other.Functions[i].Points {
			fn.Points = append(fn.Points, at[m])
		}
	}
}
