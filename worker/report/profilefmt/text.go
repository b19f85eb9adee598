package profilefmt

import (
	"bufio"
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/pprof/profile"
)

const defaultTop = 20

// writeText prints the totals of the profile and its heaviest stacks, innermost frame first.
func writeText(w *bufio.Writer, p *profile.Profile, index int, o Options) error {
	for _, line := range append([]string{o.Title, o.Subtitle}, o.Notes...) {
		if line != "" {
			_, _ = fmt.Fprintln(w, shown(line)) // the writer keeps an error until Flush
		}
	}
	_, _ = fmt.Fprintln(w, totals(p))
	sums, err := foldStacks(p, index, o, plainWords)
	if err != nil {
		return err
	}
	total := int64(0)
	for _, v := range sums {
		total = plus(total, v)
	}
	stacks := slices.SortedFunc(maps.Keys(sums), func(a, b string) int {
		return cmp.Or(cmp.Compare(magnitude(sums[b]), magnitude(sums[a])), cmp.Compare(a, b))
	})
	top := cmp.Or(max(o.Top, 0), defaultTop)
	unit := p.SampleType[index]
	for _, stack := range stacks[:min(top, len(stacks))] {
		_, _ = fmt.Fprintf(w, "\n%s%s", quantity(sums[stack], unit), share(sums[stack], total))
		list := strings.Split(stack, ";")
		if n := len(o.Root); n > 0 {
			_, _ = fmt.Fprintf(w, ", %s", strings.Join(list[:n], " "))
			list = list[n:]
		}
		_ = w.WriteByte('\n')
		for i, name := range slices.Backward(list) {
			_, _ = fmt.Fprintf(w, "#%-3d %s\n", len(list)-1-i, name)
		}
	}
	if left := len(stacks) - top; left > 0 {
		_, _ = fmt.Fprintf(w, "\n%d more stacks\n", left)
	}
	return nil
}

// totals is a line with the sum of each sample type, and the duration.
func totals(p *profile.Profile) string {
	words := make([]string, 0, len(p.SampleType)+1)
	for i, t := range p.SampleType {
		sum := int64(0)
		for _, s := range p.Sample {
			sum = plus(sum, s.Value[i])
		}
		if amount := quantity(sum, t); t.Unit == "count" {
			words = append(words, amount+" "+shown(t.Type))
		} else {
			words = append(words, shown(t.Type)+" "+amount)
		}
	}
	if d := time.Duration(p.DurationNanos); d > 0 {
		words = append(words, "duration "+quantity(int64(d), &profile.ValueType{Unit: "nanoseconds"}))
	}
	return strings.Join(words, ", ")
}

func share(v, total int64) string {
	if total == 0 {
		return ""
	}
	return fmt.Sprintf(", %.1f %%", 100*float64(v)/float64(total))
}

// magnitude is the absolute value as a number that cannot overflow.
func magnitude(v int64) uint64 {
	if v < 0 {
		return -uint64(v)
	}
	return uint64(v)
}
