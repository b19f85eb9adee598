package clusterbpf

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
)

// Processors returns the number of the host's processors that are online. runtime.NumCPU may be less: it counts those on which this
// process may run.
func Processors() int {
	list, err := online()
	if err != nil {
		return runtime.NumCPU()
	}
	return len(list)
}

// online returns the numbers of the host's processors that are online, in ascending order.
func online() ([]int, error) {
	data, err := os.ReadFile("/sys/devices/system/cpu/online")
	if err != nil {
		return nil, fmt.Errorf("list the processors: %w", err)
	}
	return parseProcessors(strings.TrimSpace(string(data)))
}

// parseProcessors returns the processor numbers in a list such as "0-3,8".
func parseProcessors(text string) (list []int, err error) {
	const most = 1 << 16
	for part := range strings.SplitSeq(text, ",") {
		from, to, isRange := strings.Cut(part, "-")
		if !isRange {
			to = from
		}
		first, err1 := strconv.Atoi(from)
		last, err2 := strconv.Atoi(to)
		if err1 != nil || err2 != nil || first < 0 || last < first || last > most {
			return nil, fmt.Errorf("list the processors: %q is no list of numbers", text)
		}
		for n := first; n <= last; n++ {
			list = append(list, n)
		}
	}
	return list, nil
}
