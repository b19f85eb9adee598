package console

import "strings"

// DidYouMean returns "; did you mean ...?" with the names that begin with word or differ from word in few letters, in upper or lower case.
// It returns "" if there are none, or more than three.
func DidYouMean(word, prefix string, names []string) string {
	var similar []string
	for _, name := range names {
		small, lower := strings.ToLower(word), strings.ToLower(name)
		if word != "" && (strings.HasPrefix(lower, small) || distance(small, lower) <= 1+len(word)/4) {
			similar = append(similar, prefix+name)
		}
	}
	const most = 3
	if len(similar) == 0 || len(similar) > most {
		return ""
	}
	return "; did you mean " + strings.Join(similar, " or ") + "?"
}

// distance returns the Levenshtein distance of two names: the number of bytes to insert, remove or replace. It returns 64 if a name
// is longer than 64 bytes.
func distance(a, b string) int {
	const longest = 64
	if len(a) > longest || len(b) > longest {
		return longest
	}
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replaced := diagonal
			if a[i] != b[j] {
				replaced++
			}
			diagonal = row[j+1]
			row[j+1] = min(replaced, row[j]+1, diagonal+1)
		}
	}
	return row[len(b)]
}
