-- fsm-agent for nvim-dap (https://github.com/mfussenegger/nvim-dap): put this where your configuration sets up nvim-dap.
local dap = require("dap")

dap.adapters["fsm-agent"] = { type = "executable", command = "fsm-agent", args = { "debug", "--stdio" } }

dap.configurations.python = dap.configurations.python or {}
vim.list_extend(dap.configurations.python, {
  {
    type = "fsm-agent",
    request = "launch",
    name = "fsm-agent: new turn",
    task = function()
      return vim.fn.input("Message: ")
    end,
    cwd = "${workspaceFolder}",
  },
  { type = "fsm-agent", request = "attach", name = "fsm-agent: newest turn", cwd = "${workspaceFolder}" },
})

-- Back and forth in what is recorded; nothing runs again.
vim.keymap.set("n", "<leader>db", dap.step_back, { desc = "fsm-agent: look at the move before" })
vim.keymap.set("n", "<leader>dB", dap.reverse_continue, { desc = "fsm-agent: look at the breakpoint before" })
-- Go on from the selected frame as another turn.
vim.keymap.set("n", "<leader>df", dap.restart_frame, { desc = "fsm-agent: fork from this frame" })
