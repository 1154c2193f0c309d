package lock

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/pglead/pglead/runner/localpg/testserver"
)

// TestMain fails if a wait or a lock leaves a goroutine behind.
func TestMain(m *testing.M) {
	testserver.Parallel()
	goleak.VerifyTestMain(m)
}
