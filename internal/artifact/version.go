package artifact

import (
	"fmt"
	"regexp"
	"strconv"
)

var versionPattern = regexp.MustCompile(`(?:^|\bv)([0-9]{1,4})\.([0-9]{1,4})\.([0-9]{1,4})([-+][0-9A-Za-z.+-]+)?(?:\s|$)`)

// CheckFirecracker judges a Firecracker release by its version: either bare
// ("1.17.0") or the output of `firecracker --version` ("Firecracker v1.17.0").
//
// An error means that it must not be used at all: older than 1.12 (no network
// overrides on a snapshot load), 1.16.0 and 1.16.1 (vsock hangs after a pause
// and resume), another major version (another API), or not a version. Without
// an error, supported says whether the release still gets security fixes;
// where it is false a real host wants the operator's explicit consent.
func CheckFirecracker(text string) (supported bool, err error) {
	match := versionPattern.FindStringSubmatch(text)
	if match == nil {
		return false, fmt.Errorf("check firecracker version: %.80q holds no version like 1.17.0", text)
	}
	var n [3]int
	for i := range n {
		n[i], _ = strconv.Atoi(match[i+1]) // at most four digits, by the pattern
	}
	name := fmt.Sprintf("%d.%d.%d%s", n[0], n[1], n[2], match[4])
	switch {
	case n[0] != 1:
		return false, fmt.Errorf("check firecracker version: %s has another API than 1.x; install 1.17.0", name)
	case n[1] < 12:
		return false, fmt.Errorf("check firecracker version: %s is older than 1.12; install 1.17.0", name)
	case n[1] == 16 && n[2] < 2:
		return false, fmt.Errorf("check firecracker version: %s hangs vsock after a pause and resume; install 1.16.2 or 1.17.0", name)
	}
	// A suffix (-dev, -rc1) is no release, and its build may carry no seccomp filter.
	return n[1] >= 16 && match[4] == "", nil
}
