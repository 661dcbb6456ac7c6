package scenario

import (
	"os"
	"testing"

	"github.com/mcrdma/mcrdma/internal/testenv"
)

func TestMain(m *testing.M) {
	testenv.OneProcessor()
	os.Exit(m.Run())
}
