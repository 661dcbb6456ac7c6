package main

import _ "github.com/mcrdma/mcrdma/pkg/qp/ibverbs" // real with the build tag of the same name
