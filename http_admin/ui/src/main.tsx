import { render } from 'preact';
import { App } from './app';
import './styles/tokens.css';
import './styles/base.css';
import './styles/forms.css';
import './styles/components.css';
import './styles/tables.css';
import './styles/overlays.css';
import './styles/layout.css';
import './styles/pages.css';
import './styles/messages.css';
import './styles/history.css';

const host = document.getElementById('app');
if (host !== null) render(<App />, host);
