//go:build amd64 || arm64

package probe

import "testing"

// The benchmarks measure what a hit costs the process that has it.

func benchmark(b *testing.B, probe Probe) {
	b.Helper()
	p, err := Load(Config{Probes: []Probe{probe}})
	if err != nil {
		b.Skipf("this host cannot run the programs: %v", err)
	}
	defer p.Close()
	site := siteOf(b)
	link, err := p.Attach("/proc/self/exe", 0, []Site{site})
	if err != nil {
		b.Fatal(err)
	}
	defer link.Close()
	p.SetBudget(1<<40, 1)
	for b.Loop() {
		probedCall(1, "")
	}
}

func BenchmarkCount(b *testing.B) { benchmark(b, Probe{}) }

// BenchmarkCondition counts with a condition on an argument.
func BenchmarkCondition(b *testing.B) {
	first := Argument{Register: registerArguments[0], Size: 8}
	benchmark(b, Probe{Conditions: []Condition{{What: first, Op: Equal, Value: 1}}})
}
